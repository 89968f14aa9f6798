// @ts-check
/** Whether a job, or a replica of a model, would start now: asked of the scheduler while a form is filled in. */
import { useEffect, useState } from 'preact/hooks';
import { change } from '../data/api.js';
import { html } from '../html.js';
import { duration, sentence } from '../view/format.js';
import { starts } from '../view/why.js';
import { Panel } from './basics.js';
import { Linked } from './linked.js';

const SETTLED_MS = 600;

/** @param {{body: any, thing: string, hint: string}} props `body`: that of the job; without a command nothing is asked */
export function WouldStart({ body, thing, hint }) {
  const [check, setCheck] = useState(/** @type {any} */ (null));
  useEffect(() => {
    setCheck(null);
    if (!body.command) return undefined;
    let left = false;
    const show = (/** @type {any} */ found) => left || setCheck(found);
    const timer = setTimeout(() => change('POST', '/v1/whatif', body).then(show, (failed) => show({ failed })), SETTLED_MS);
    return () => {
      left = true;
      clearTimeout(timer);
    };
  }, [JSON.stringify(body)]);
  return html`<${Panel} title="Would it start now?"><div role="status" class="stack"><${Check} check=${check} wanted=${Boolean(body.command)} thing=${thing} hint=${hint} /></div><//>`;
}

/** @param {{check: any, wanted: boolean, thing: string, hint: string}} props */
function Check({ check, wanted, thing, hint }) {
  if (!wanted) return html`<p class="muted">${hint}</p>`;
  if (!check) return html`<p class="muted">Asking the scheduler…</p>`;
  if (check.failed) return html`<p class="bad-text">${sentence(check.failed.message)}</p>`;
  if (check.would_start) return html`<p><b>Yes.</b> ${sentence(thing)} would start on ${check.placement.map((/** @type {any} */ each) => each.node_id).join(', ')}.</p>`;
  return html`<p><b>No.</b> <${Linked} text=${sentence(check.answer)} /></p>
    ${check.estimate && html`<p>${starts(check.estimate, duration).headline} <span class="muted">${starts(check.estimate, duration).basis}</span></p>`}
    ${check.changes?.length > 0 && html`<h3>It would start now if you</h3><ul class="dots">${check.changes.map((/** @type {string} */ text) => html`<li><${Linked} text=${text} /></li>`)}</ul>`}`;
}
