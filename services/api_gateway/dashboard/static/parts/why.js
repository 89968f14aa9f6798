// @ts-check
/** The scheduler's explanation: what it says, what stands in the way, who is ahead, what would help.
 * It is asked again every few seconds, because time alone changes it. */
import { change, segment } from '../data/api.js';
import { href, moment } from '../data/router.js';
import { who } from '../data/session.js';
import { useAnswer } from '../data/use_answer.js';
import { html } from '../html.js';
import * as lines from '../view/command_lines.js';
import { duration, sentence } from '../view/format.js';
import { hasEnded, title } from '../view/jobs.js';
import { cancelled } from '../view/links.js';
import { changes } from '../view/rights.js';
import { amount, starts } from '../view/why.js';
import { CommandLine, Loading, Panel, Trouble } from './basics.js';
import { Action } from './dialog.js';
import { Linked } from './linked.js';

const AGAIN_MS = 5000;

/** @param {{path: string, name: string, at: number, state: string, bare?: boolean, model?: boolean}} props */
export function Why({ path, name, at, state, bare, model }) {
  const isOver = hasEnded({ state });
  const { data, error, loading, again } = useAnswer(path, {}, { topic: 'jobs', filter: model ? { kind: 'replica', snapshot: false } : { ids: [name], snapshot: false }, every: isOver ? undefined : AGAIN_MS });
  const command = model ? `muster models ${lines.quoted(name)}` : lines.why(name, at);
  const body = html`
    <${Trouble} error=${error} retry=${again} />
    ${!data && loading && html`<${Loading} lines=${3} />`}
    ${data && html`<${Explanation} data=${data} model=${model ? name : ''} />`}
    <${CommandLine} line=${command} />
  `;
  if (bare) return html`<div class="why">${body}</div>`;
  return html`<${Panel} title="Why" actions=${html`<button type="button" class="quiet" onClick=${again}>Ask again</button>`} class="why">${body}<//>`;
}

/** @param {{data: any, model: string}} props */
function Explanation({ data, model }) {
  const estimate = data.estimate;
  const others = (data.changes ?? []).filter((/** @type {string} */ text) => text !== data.remedy);
  return html`
    <p class="answer"><${Linked} text=${sentence(data.answer)} model=${model} /></p>
    ${estimate && html`<p><b>${starts(estimate, duration).headline}</b> <span class="muted">${starts(estimate, duration).basis}</span></p>`}
    ${data.remedy && html`<p class="note"><span><b>Remedy:</b> <${Linked} text=${data.remedy} model=${model} /></span>${cancelled(data.remedy) && html`<${Cancel} id=${cancelled(data.remedy)} />`}</p>`}
    ${others.length > 0 && html`<div><h3>It would also start now if you</h3><ul class="dots">${others.map((/** @type {string} */ text) => html`<li><${Linked} text=${text} /></li>`)}</ul></div>`}
    ${data.blockers?.length > 0 &&
    html`<div><h3>What stands in the way</h3>
      <ul class="blockers">${data.blockers.map((/** @type {any} */ each) => html`<li><b>${amount(each)}</b><span>${sentence(each.what)}${each.build ? html` <span class="muted">${each.build}</span>` : ''}</span><span class="muted"><${Linked} text=${each.detail} /></span></li>`)}</ul></div>`}
    ${data.before?.length > 0 &&
    html`<div><h3>Ahead in the queue</h3><ul class="blockers">${data.before.map((/** @type {any} */ each) => html`<li>${each.job_id ? html`<a class="mono" href=${href(`/jobs/${each.job_id}`)}>${each.job_id}</a>` : html`<span class="muted">a job</span>`}<span></span><span class="muted">${each.why}</span></li>`)}</ul></div>`}
  `;
}

/** The button for a remedy that cancels another job, for those who may. @param {{id: string}} props */
function Cancel({ id }) {
  const path = `/v1/jobs/${segment(id)}`;
  const { data: job } = useAnswer(moment.value ? null : path);
  if (!job || hasEnded(job) || !changes(who(), job)) return null;
  const name = title(job);
  return html`<${Action} title=${`Cancel ${name}?`} text=${`Job ${id} of ${job.tenant}/${job.user} is stopped: its processes get SIGTERM, and SIGKILL after the grace period.`} line=${lines.cancel(id)} label="Cancel job" danger=${true} disabled=${job.cancel_requested} run=${() => change('POST', `${path}/cancel`)} done=${`${name} is cancelled.`}>Cancel ${name}<//>`;
}
