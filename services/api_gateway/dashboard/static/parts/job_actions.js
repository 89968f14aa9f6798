// @ts-check
/** The actions of a user on a job. */
import { change, segment } from '../data/api.js';
import { who } from '../data/session.js';
import { html } from '../html.js';
import * as lines from '../view/command_lines.js';
import { hasEnded, ON_NODES, title } from '../view/jobs.js';
import { changes } from '../view/rights.js';
import { Action } from './dialog.js';

/** @param {{job: any, small?: boolean}} props */
export function JobActions({ job, small }) {
  if (!changes(who(), job) || hasEnded(job)) return null;
  const post = (/** @type {string} */ verb) => () => change('POST', `/v1/jobs/${segment(job.id)}/${verb}`);
  const name = title(job);
  const waits = job.state === 'queued' || job.state === 'pending';
  return html`
    ${job.held
      ? html`<${Action} title=${`Release ${name}?`} text="It waits in its queue again." line=${lines.release(job.id)} label="Release" run=${post('release')} />`
      : waits && html`<${Action} title=${`Hold ${name}?`} text="It stays in its queue and does not start until it is released." line=${lines.hold(job.id)} label="Hold" run=${post('hold')} />`}
    ${!small &&
    ON_NODES.includes(job.state) &&
    html`<${Action} title=${`Requeue ${name}?`} text="The running attempt is stopped, and the job waits in its queue again. This does not count as a retry." line=${lines.requeue(job.id)} label="Requeue" run=${post('requeue')} />`}
    <${Action} title=${`Cancel ${name}?`} text="Its processes get SIGTERM, and SIGKILL after the grace period. Its GPUs become free when they are proved clean." line=${lines.cancel(job.id)} label=${small ? 'Cancel' : 'Cancel job'} danger=${true} disabled=${job.cancel_requested} run=${post('cancel')}>${job.cancel_requested ? 'Cancelling…' : small ? 'Cancel' : 'Cancel job'}<//>
  `;
}
