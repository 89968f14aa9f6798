// @ts-check
/** Submit a job: the usual fields, a check whether it would start now, and the command that does the same. */
import { useState } from 'preact/hooks';
import { change } from '../data/api.js';
import { go, href } from '../data/router.js';
import { useAnswer } from '../data/use_answer.js';
import { jobForm, useFilled } from '../data/use_filled.js';
import { html } from '../html.js';
import { Field, Trouble } from '../parts/basics.js';
import { tell } from '../parts/dialog.js';
import { command, environment, fieldOf, focused, given, secrets } from '../parts/form.js';
import { Environment, FormEnd } from '../parts/form_end.js';
import { WouldStart } from '../parts/would_start.js';
import * as lines from '../view/command_lines.js';

const FIELDS = ['name', 'command', 'gpus', 'fraction', 'nodes', 'queue', 'priority', 'time_limit', 'estimate', 'image', 'env', 'secrets'];
const BLANK = { name: '', command: '', gpus: '1', fraction: '', nodes: '1', queue: '', priority: '', time_limit: '', estimate: '', image: '', env: '', secrets: '' };

/** The gateway's body of a form. @param {typeof BLANK} form */
export function bodyOf(form) {
  return given({
    name: form.name.trim(),
    command: command(form.command),
    gpus: form.gpus === '' ? undefined : Number(form.gpus),
    fraction: form.fraction === '' ? undefined : Number(form.fraction),
    nodes: Number(form.nodes) > 1 ? Number(form.nodes) : undefined,
    queue: form.queue,
    priority: form.priority === '' ? undefined : Number(form.priority),
    time_limit: form.time_limit.trim(),
    estimate: form.estimate.trim(),
    image: form.image.trim(),
    env: environment(form.env),
    secrets: secrets(form.secrets),
  });
}

export default function SubmitPage() {
  const { form, setForm, source, error: unread } = useFilled(BLANK, jobForm);
  const [error, setError] = useState(/** @type {Error|null} */ (null));
  const [sending, setSending] = useState(false);
  const queues = useAnswer('/v1/queues').data?.queues ?? [];
  const body = bodyOf(form);
  const wrong = fieldOf(error, FIELDS);
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    setSending(true);
    setError(null);
    try {
      const job = await change('POST', '/v1/jobs', body);
      tell(`Job ${job.name || job.id} is submitted.`);
      go(href(`/jobs/${job.id}`));
    } catch (failed) {
      setError(/** @type {Error} */ (failed));
      setSending(false);
    }
  };
  const input = (/** @type {keyof typeof BLANK} */ name, extra = {}) =>
    html`<input name=${name} value=${form[name]} onInput=${(/** @type {any} */ event) => setForm({ ...form, [name]: event.target.value })} ...${extra} />`;
  const help = (/** @type {string} */ name) => (wrong === name ? error?.message : undefined);
  return html`<div class="page">
    <div class="page-head"><h1>Submit a job</h1>${source && html`<span class="sub">filled in from <a href=${href(`/jobs/${source.id}`)}>${source.name || source.id}</a></span>`}</div>
    <${Trouble} error=${unread} />
    <div class="columns">
      <form class="panel" onSubmit=${submit}>
        <div class="content form">
          <${Field} label="Command" wide=${true} error=${help('command')} help="One command, for example python train.py --epochs 3. With pipes or variables it runs in a shell.">
            <textarea class="mono" rows="3" required spellcheck="false" value=${form.command} onInput=${(/** @type {any} */ event) => setForm({ ...form, command: event.target.value })} ref=${focused}></textarea>
          <//>
          <${Field} label="Name" error=${help('name')} help="Optional; used in lists and commands.">${input('name', { autocomplete: 'off' })}<//>
          <${Field} label="GPUs on each node" error=${help('gpus')}>${input('gpus', { type: 'number', min: 0, max: 64 })}<//>
          <${Field} label="Fraction of each GPU" error=${help('fraction')} help="Empty: whole GPUs. 0.25 is a quarter.">${input('fraction', { type: 'number', min: 0.01, max: 1, step: 0.01 })}<//>
          <${Field} label="Nodes" error=${help('nodes')} help="All start at once, or none.">${input('nodes', { type: 'number', min: 1 })}<//>
          <${Field} label="Queue" error=${help('queue')}>
            <select value=${form.queue} onChange=${(/** @type {any} */ event) => setForm({ ...form, queue: event.target.value })}><option value="">default</option>${queues.filter((/** @type {any} */ each) => each.name !== 'default').map((/** @type {any} */ each) => html`<option key=${each.name} value=${each.name}>${each.name}</option>`)}</select>
          <//>
          <${Field} label="Priority" error=${help('priority')} help="0 to 100; a higher one starts first.">${input('priority', { type: 'number', min: 0, max: 100, placeholder: '50' })}<//>
          <${Field} label="Time limit" error=${help('time_limit')} help="The job is stopped after this time, for example 90s or 1h30m.">${input('time_limit', { placeholder: 'none', autocomplete: 'off' })}<//>
          <${Field} label="Expected run time" error=${help('estimate')} help="For example 20m. Used to estimate when waiting jobs can start.">${input('estimate', { placeholder: 'unknown', autocomplete: 'off' })}<//>
          <${Field} label="Image" error=${help('image')} help="Container image. Empty: run directly on the node.">${input('image', { autocomplete: 'off' })}<//>
          <${Environment} form=${form} setForm=${setForm} wrong=${wrong} error=${error} />
        </div>
        <${FormEnd} error=${wrong ? null : error} line=${lines.submit(body)} sending=${sending} text="Submit job" busy="Submitting…" />
      </form>
      <${WouldStart} body=${body} thing="it" hint="Type a command. The scheduler then says whether the job would start now." />
    </div>
  </div>`;
}
