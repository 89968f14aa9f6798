// @ts-check
/** Why a job is stuck: the recorded diagnoses, and the button that examines it now. */
import { useState } from 'preact/hooks';
import { change, segment } from '../data/api.js';
import { moment } from '../data/router.js';
import { who } from '../data/session.js';
import { present } from '../data/shown.js';
import { useAnswer } from '../data/use_answer.js';
import { html } from '../html.js';
import * as lines from '../view/command_lines.js';
import { ago, millis, sentence } from '../view/format.js';
import { changes } from '../view/rights.js';
import { CommandLine, Empty, Loading, Panel, Trouble } from './basics.js';

/** @param {{job: any}} props */
export function Diagnosis({ job }) {
  const path = `/v1/jobs/${segment(job.id)}/diagnoses`;
  const { data, error, again } = useAnswer(path, {}, { topic: 'jobs', filter: { ids: [job.id], snapshot: false }, present: true });
  const [made, setMade] = useState(/** @type {any} */ (null));
  const [failed, setFailed] = useState(/** @type {Error|null} */ (null));
  const [busy, setBusy] = useState(false);
  const may = job.state === 'running' && !moment.value && changes(who(), job);
  const examine = async () => {
    setBusy(true);
    try {
      setMade(await change('POST', path));
      setFailed(null);
    } catch (problem) {
      setFailed(/** @type {Error} */ (problem));
    }
    setBusy(false);
  };
  const button = html`<button type="button" class="quiet" disabled=${busy} onClick=${examine}>${busy ? 'Examining…' : 'Examine now'}</button>`;
  return html`<${Panel} title="Diagnosis" class="why" actions=${may && button}>
    <${Trouble} error=${failed} />
    <${Trouble} error=${error} retry=${again} />
    ${made && html`<${Made} made=${made} />`}
    ${!data && !error && html`<${Loading} lines=${3} />`}
    ${data && !made && !data.diagnoses.length && html`<${Empty} title="No diagnosis is recorded">Muster examines a job with several ranks by itself when it shows no progress.<//>`}
    ${data?.diagnoses.length > 0 && html`<h3>Recorded</h3><ul class="dots">${data.diagnoses.map((/** @type {any} */ each) => html`<li key=${each.at}>${sentence(each.sentence)} <span class="muted">attempt ${each.attempt}, ${each.automatic ? 'without a request' : each.user}, ${ago(millis(each.at), present.value)}</span></li>`)}</ul>`}
    <${CommandLine} line=${lines.diagnose(job.id)} />
  <//>`;
}

/** What was just found. @param {{made: any}} props */
function Made({ made }) {
  return html`
    <p class="answer">${sentence(made.sentence)}</p>
    ${made.groups.length > 0 &&
    html`<div><h3>Where the ranks are</h3>
      <ul class="blockers">${made.groups.map((/** @type {any} */ each) => html`<li key=${each.ranks}><b>${each.count}</b><span>${each.place}</span><span class="muted">rank ${each.ranks}</span></li>`)}</ul></div>`}
    ${made.notes.length > 0 && html`<ul class="dots">${made.notes.map((/** @type {string} */ note) => html`<li class="muted" key=${note}>${note}</li>`)}</ul>`}
  `;
}
