// @ts-check
/** Deploy a model: a command that serves HTTP, and how many replicas of it. */
import { useState } from 'preact/hooks';
import { change, segment } from '../data/api.js';
import { go, href } from '../data/router.js';
import { modelForm, useFilled } from '../data/use_filled.js';
import { html } from '../html.js';
import { Choice, Field, Panel, Trouble } from '../parts/basics.js';
import { tell } from '../parts/dialog.js';
import { command, environment, fieldOf, focused, given, secrets } from '../parts/form.js';
import { Environment, FormEnd } from '../parts/form_end.js';
import { WouldStart } from '../parts/would_start.js';
import * as lines from '../view/command_lines.js';

const FIELDS = ['name', 'command', 'gpus', 'fraction', 'replicas', 'scaling', 'image', 'env', 'secrets'];
const BLANK = { name: '', command: '', gpus: '1', fraction: '', by: 'fixed', replicas: '1', least: '0', most: '4', ttft: '', image: '', env: '', secrets: '' };

/** @param {typeof BLANK} form */
export function bodyOf(form) {
  const scaled = form.by === 'scaled';
  return given({
    name: form.name.trim(),
    command: command(form.command),
    gpus: form.gpus === '' ? undefined : Number(form.gpus),
    fraction: form.fraction === '' ? undefined : Number(form.fraction),
    replicas: scaled ? undefined : Number(form.replicas),
    scaling: scaled
      ? given({ replicas_min: Number(form.least), replicas_max: Number(form.most), first_token_ms: form.ttft === '' ? undefined : Number(form.ttft) })
      : undefined,
    image: form.image.trim(),
    env: environment(form.env),
    secrets: secrets(form.secrets),
  });
}

/** A replica as a job. @param {any} body */
const replica = (body) => given({ command: body.command, gpus: body.gpus, fraction: body.fraction, image: body.image });

export default function DeployPage() {
  const { form, setForm, source, error: unread } = useFilled(BLANK, modelForm);
  const [error, setError] = useState(/** @type {Error|null} */ (null));
  const [sending, setSending] = useState(false);
  const body = bodyOf(form);
  const isDeployed = source !== null && !['stopping', 'undeployed'].includes(source.state);
  // A redeployment keeps the fields that it does not name; a whole GPU has to be named.
  const { name: _, ...changed } = { ...body, fraction: body.fraction ?? (source?.gpu_share < 100 ? 1 : undefined) };
  const wrong = fieldOf(error, FIELDS);
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    setSending(true);
    setError(null);
    try {
      const model = isDeployed ? await change('POST', `/v1/deployments/${segment(source.name)}/redeploy`, changed) : await change('POST', '/v1/deployments', body);
      tell(isDeployed ? `Model ${model.name} is redeployed: its replicas are replaced one by one.` : `Model ${model.name} is deployed.`);
      go(href(`/models/${encodeURIComponent(model.name)}`));
    } catch (failed) {
      setError(/** @type {Error} */ (failed));
      setSending(false);
    }
  };
  const input = (/** @type {keyof typeof BLANK} */ name, extra = {}) =>
    html`<input name=${name} value=${form[name]} onInput=${(/** @type {any} */ event) => setForm({ ...form, [name]: event.target.value })} ...${extra} />`;
  const help = (/** @type {string} */ name) => (wrong === name ? error?.message : undefined);
  return html`<div class="page">
    <div class="page-head"><h1><a class="crumb" href=${href('/models')}>Models</a> <span class="crumb" aria-hidden="true">/</span> ${isDeployed ? `Edit ${source.name}` : 'Deploy a model'}</h1>${source && !isDeployed && html`<span class="sub">filled in from ${source.name}; its variables and secrets are to be given again</span>`}</div>
    <${Trouble} error=${unread} />
    <div class="columns">
      <form class="panel" onSubmit=${submit}>
        <div class="content form">
          <${Field} label="Name" error=${help('name')} help="The model name in requests.">${input('name', { required: true, autocomplete: 'off', disabled: isDeployed, ref: focused })}<//>
          <${Field} label="Image" error=${help('image')} help="Container image. Empty: run directly on the node.">${input('image', { autocomplete: 'off' })}<//>
          <${Field} label="Command" wide=${true} error=${help('command')} help="A server of OpenAI’s API. {port} becomes the replica’s port, {host} its address.">
            <textarea class="mono" rows="3" spellcheck="false" required placeholder="vllm serve Qwen/Qwen2.5-7B-Instruct --host {host} --port {port}" value=${form.command} onInput=${(/** @type {any} */ event) => setForm({ ...form, command: event.target.value })}></textarea>
          <//>
          <${Field} label="GPUs of each replica" error=${help('gpus')}>${input('gpus', { type: 'number', min: 0 })}<//>
          <${Field} label="Fraction of each GPU" error=${help('fraction')} help="Empty: whole GPUs.">${input('fraction', { type: 'number', min: 0.01, max: 1, step: 0.01 })}<//>
          <div class="field wide">
            <span class="label">Replicas</span>
            <div class="toolbar">
              <${Choice} label="Replicas" value=${form.by} choices=${[['fixed', 'Fixed'], ['scaled', 'By the requests']]} onChange=${(/** @type {string} */ by) => setForm({ ...form, by })} />
              ${form.by === 'fixed'
                ? input('replicas', { type: 'number', min: 0, 'aria-label': 'Number of replicas', class: 'narrow' })
                : html`${input('least', { type: 'number', min: 0, 'aria-label': 'Fewest replicas', class: 'narrow' })} to ${input('most', { type: 'number', min: 1, 'aria-label': 'Most replicas', class: 'narrow' })}
                    <span class="muted">first token within</span> ${input('ttft', { type: 'number', min: 1, placeholder: 'any', 'aria-label': 'Milliseconds to the first token', class: 'narrow' })} <span class="muted">ms</span>`}
            </div>
            ${(help('replicas') || help('scaling')) && html`<span class="help bad-text" role="alert">${error?.message}</span>`}
          </div>
          <${Environment} form=${form} setForm=${setForm} wrong=${wrong} error=${error} kept=${isDeployed} />
        </div>
        <${FormEnd} error=${wrong ? null : error} line=${lines.deploy(body, isDeployed ? 'redeploy' : 'deploy')} sending=${sending} text=${isDeployed ? 'Redeploy model' : 'Deploy model'} busy="Deploying…" />
      </form>
      <div class="stack">
      <${WouldStart} body=${replica(body)} thing="a replica" hint="Type a command. The scheduler then says whether a replica would start now." />
      <${Panel} title="Next steps">
        <ol class="steps"><li>The scheduler places the replicas.</li><li>Each replica gets requests when <code>GET /health</code> answers.</li><li>A replica that dies is replaced.</li><li>Requests go to this gateway, at <code>/v1/chat/completions</code>; the model’s page has a chat.</li></ol>
      <//>
      </div>
    </div>
  </div>`;
}
