// @ts-check
/** Every fact of a job, in order, with the time between them. */
import { segment } from '../data/api.js';
import { now } from '../data/clock.js';
import { href, moment } from '../data/router.js';
import { useAnswer } from '../data/use_answer.js';
import { html } from '../html.js';
import { clock, gap, millis } from '../view/format.js';
import { CommandLine, Loading, Panel, Trouble } from './basics.js';
import { Fact } from './fact.js';

const FACTS = 1000;

/** @param {{job: any}} props */
export function JobTimeline({ job }) {
  const { data, error, again } = useAnswer(`/v1/jobs/${segment(job.id)}/history`, { limit: FACTS }, { topic: 'jobs', filter: { ids: [job.id], snapshot: false }, present: true });
  const facts = (data?.facts ?? []).filter((/** @type {any} */ fact) => !moment.value || fact.seq <= moment.value);
  return html`<${Panel} title="Timeline">
    <${Trouble} error=${error} retry=${again} />
    ${!data && !error && html`<${Loading} />`}
    <ol class="timeline">
      ${facts.map((/** @type {any} */ fact, /** @type {number} */ place) => {
        const at = millis(fact.at);
        const before = place ? millis(facts[place - 1].at) : null;
        return html`<li key=${`${fact.seq}-${place}`}>
          <span class="when"><time datetime=${fact.at}>${clock(at, now.value)}</time>${at !== null && before !== null && html`<span class="muted">+${gap(at - before)}</span>`}</span>
          <div><${Fact} fact=${fact} /></div>
          <a class="muted seq" href=${href(`/jobs/${segment(job.id)}`, { at: fact.seq })} title="Show the cluster at this commit">#${fact.seq}</a>
        </li>`;
      })}
    </ol>
    <${CommandLine} line=${`muster log --job ${job.id}`} />
  <//>`;
}
