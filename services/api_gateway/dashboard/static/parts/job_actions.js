// @ts-check
/** The actions of a user on a job. */
import { change, segment } from '../data/api.js';
import { who } from '../data/session.js';
import { html } from '../html.js';
import * as lines from '../view/command_lines.js';
import { hasEnded, ON_NODES, title } from '../view/jobs.js';
import { changes, creates } from '../view/rights.js';
import { href } from '../data/router.js';
import { Action } from './dialog.js';

/** The form for the next try, filled in. @param {{job: any}} props */
function Again({ job }) {
  if (job.model) return html`<a class="button" href=${href('/deploy', { from: job.model, at: undefined })}>Edit and redeploy</a>`;
  return job.kind === 'job' && !job.element_of && html`<a class="button" href=${href('/submit', { from: job.id, at: undefined })}>Submit again</a>`;
}

/** @param {{job: any, small?: boolean}} props */
export function JobActions({ job, small }) {
  if (hasEnded(job)) return small || !creates(who()) ? null : html`<${Again} job=${job} />`;
  if (!changes(who(), job)) return null;
  const post = (/** @type {string} */ verb) => () => change('POST', `/v1/jobs/${segment(job.id)}/${verb}`);
  const name = title(job);
  const waits = job.state === 'queued' || job.state === 'pending';
  return html`
    ${job.held
      ? html`<${Action} title=${`Release ${name}?`} text="It waits in its queue again." line=${lines.release(job.id)} label="Release" run=${post('release')} done=${`${name} is released.`} />`
      : waits && html`<${Action} title=${`Hold ${name}?`} text="It stays in its queue and does not start until it is released." line=${lines.hold(job.id)} label="Hold" run=${post('hold')} done=${`${name} is held.`} />`}
    ${!small &&
    ON_NODES.includes(job.state) &&
    html`<${Action} title=${`Requeue ${name}?`} text="The running attempt is stopped, and the job waits in its queue again. This does not count as a retry." line=${lines.requeue(job.id)} label="Requeue" run=${post('requeue')} done=${`${name} is stopped and queued again.`} />`}
    <${Action} title=${`Cancel ${name}?`} text=${waits ? 'It leaves the queue; nothing runs yet.' : 'Its processes get SIGTERM, and SIGKILL after the grace period. Its GPUs become free when they are proved clean.'} line=${lines.cancel(job.id)} label="Cancel job" danger=${true} disabled=${job.cancel_requested} run=${post('cancel')} done=${`${name} is cancelled.`}>${job.cancel_requested ? 'Cancelling…' : small ? `Cancel ${name}` : 'Cancel job'}<//>
  `;
}
