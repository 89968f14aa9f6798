// @ts-check
/** The scheduler's explanation: what it says, what stands in the way, who is ahead, what would help. */
import { href } from '../data/router.js';
import { useAnswer } from '../data/use_answer.js';
import { html } from '../html.js';
import * as lines from '../view/command_lines.js';
import { count, duration } from '../view/format.js';
import { CommandLine, Loading, Panel, Trouble } from './basics.js';

/** @param {{path: string, name: string, at: number, state: string, bare?: boolean, model?: boolean}} props */
export function Why({ path, name, at, state, bare, model }) {
  const { data, error, loading, again } = useAnswer(path, {}, state === 'queued' ? {} : { topic: 'jobs', filter: { ids: [name], snapshot: false } });
  const command = model ? `muster why ${lines.quoted(name)}` : lines.why(name, at);
  const body = html`
    <${Trouble} error=${error} retry=${again} />
    ${!data && loading && html`<${Loading} lines=${3} />`}
    ${data && html`<${Explanation} data=${data} />`}
    <${CommandLine} line=${command} />
  `;
  if (bare) return html`<div class="why">${body}</div>`;
  return html`<${Panel} title="Why" actions=${html`<button type="button" class="quiet" onClick=${again}>Ask again</button>`} class="why">${body}<//>`;
}

/** @param {{data: any}} props */
function Explanation({ data }) {
  const estimate = data.estimate;
  return html`
    <p class="answer">${data.answer}</p>
    ${estimate && html`<p><b>${estimate.in_s === null ? 'No estimate' : estimate.in_s === 0 ? 'Expected to start now' : `Expected to start in ${duration(estimate.in_s)}`}</b> <span class="muted">· ${estimate.basis}</span></p>`}
    ${data.remedy && html`<p class="note"><span><b>Remedy:</b> ${data.remedy}</span></p>`}
    ${data.changes?.length > 1 && html`<div><h3>It would start now with</h3><ul class="dots">${data.changes.map((/** @type {string} */ text) => html`<li>${text}</li>`)}</ul></div>`}
    ${data.blockers?.length > 0 &&
    html`<div><h3>Blockers</h3>
      <ul class="blockers">${data.blockers.map((/** @type {any} */ each) => html`<li><b>${count(each.count)}</b><span>${each.what}${each.build ? html` <span class="muted">${each.build}</span>` : ''}</span><span class="muted">${each.detail}</span></li>`)}</ul></div>`}
    ${data.before?.length > 0 &&
    html`<div><h3>Ahead in the queue</h3><ul class="blockers">${data.before.map((/** @type {any} */ each) => html`<li>${each.job_id ? html`<a class="mono" href=${href(`/jobs/${each.job_id}`)}>${each.job_id}</a>` : html`<span class="muted">a job</span>`}<span></span><span class="muted">${each.why}</span></li>`)}</ul></div>`}
  `;
}
