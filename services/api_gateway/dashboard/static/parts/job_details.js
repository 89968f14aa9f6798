// @ts-check
/** A job's facts and figures: its phases, its ranks, its GPUs, its request. */
import { now } from '../data/clock.js';
import { href } from '../data/router.js';
import { present } from '../data/shown.js';
import { html } from '../html.js';
import * as lines from '../view/command_lines.js';
import { clock, duration, gap, millis, sentence } from '../view/format.js';
import { hasEnded, note, phases, request } from '../view/jobs.js';
import { CommandLine, Copy, Facts, Panel } from './basics.js';
import { JobLines } from './gpu_lines.js';
import { Linked } from './linked.js';
import { Bar, State } from './state.js';
import { Table } from './table.js';

const TONES = { waiting: 'wait', placed: 'place', running: 'run' };

/** @param {{job: any}} props */
export function JobDetails({ job }) {
  const time = (/** @type {string|null} */ text) => (text ? clock(millis(text), now.value) : '');
  const parts = phases(job, present.value);
  const whole = parts.reduce((sum, part) => sum + part.ms, 0);
  const problems = [...job.gpu_errors, ...job.warnings, job.refused_reason].filter(Boolean);
  const said = note(job);
  return html`
    ${said && (job.state === 'failed' || job.state === 'rejected' || !hasEnded(job)) && html`<p class=${`note ${job.state === 'failed' || job.state === 'rejected' ? 'bad' : ''}`}><${Linked} text=${said} model=${job.model} /></p>`}
    ${problems.length > 0 && html`<div class="note warn" role="note"><ul>${problems.map((text) => html`<li>${text}</li>`)}</ul></div>`}
    <${Panel} title="Attempt ${job.attempt || 1}">
      <div>
        <${Bar} whole=${whole || 1} label=${parts.map((part) => `${part.name} ${gap(part.ms)}`).join(', ')} parts=${parts.map((part) => ({ value: part.ms, tone: TONES[/** @type {keyof typeof TONES} */ (part.name)], name: part.name }))} />
        <ul class="phase-names">${parts.map((part) => html`<li key=${part.name} class=${`tone-${TONES[/** @type {keyof typeof TONES} */ (part.name)]}`}><i></i>${part.name} <b>${gap(part.ms)}</b> <span class="muted">from ${clock(part.from, now.value)}</span></li>`)}</ul>
      </div>
      ${job.members.length > 0 && html`<${Ranks} job=${job} />`}
    <//>
    <${JobLines} job=${job} />
    <${Panel} title="Job">
      <${CommandLine} line=${job.command.map(lines.quoted).join(' ') || '(the image’s own command)'} label="The job's command" />
      <${Facts}
        rows=${[
          ['Id', html`<span class="mono">${job.id}</span><${Copy} text=${job.id} label="Copy the id" />`],
          ['Kind', job.kind],
          ['Requests', request(job)],
          ['Queue', job.queue],
          ['Priority', String(job.priority)],
          ['Submitted', time(job.submitted_at)],
          ['Placed', time(job.placed_at)],
          ['Started', time(job.started_at)],
          ['Ended', time(job.ended_at)],
          ['Exit code', job.exit_code === null ? '' : String(job.exit_code)],
          ['Time limit', job.time_limit_s ? duration(job.time_limit_s) : 'none'],
          ['Retries', job.retries ? `${job.retries_used} of ${job.retries}` : ''],
          ['Preemptions', job.preemptions || ''],
          ['Image', job.image],
          ['Directory', job.workdir],
          ['Model', job.model && html`<a href=${href(`/models/${encodeURIComponent(job.model)}`)}>${job.model}</a>`],
          ['Array', job.element_of && html`<a href=${href(`/jobs/${job.element_of}`)}>${job.element_of}</a>`],
          ['Labels', Object.entries(job.labels).map(([name, value]) => `${name}=${value}`).join(', ')],
          ['Trace', job.trace_id && html`<span class="mono">${job.trace_id}</span><${Copy} text=${job.trace_id} label="Copy the trace's id" />`],
        ]}
      />
      <${CommandLine} line=${lines.describe(job.id)} />
    <//>
  `;
}

/** The state of a job that looks like that of a member. @param {any} member @param {any} job */
function memberState(member, job) {
  if (isStopped(member, job)) return 'cancelled';
  if (member.state === 'started') return 'running';
  if (member.state === 'lost' || member.state === 'refused' || member.exit_code || member.signal) return 'failed';
  return member.state === 'placed' ? 'placed' : 'completed';
}

/** Whether it ended because a user cancelled the job. @param {any} member @param {any} job */
const isStopped = (member, job) => job.state === 'cancelled' && !['placed', 'started'].includes(member.state);

/** How a member ended, in words. @param {any} member @param {any} job */
function why(member, job) {
  if (isStopped(member, job)) return 'stopped on request';
  return sentence([member.reason === 'exec_failed' ? '' : member.reason.replaceAll('_', ' '), member.detail].filter(Boolean).join(': '));
}

/** @param {{job: any}} props */
function Ranks({ job }) {
  const columns = [
    { name: 'rank', title: 'Rank', width: '60px', cell: (/** @type {any} */ member) => String(member.rank) },
    { name: 'node', title: 'Node', width: '24%', cell: (/** @type {any} */ member) => html`<a class="strong" href=${href(`/nodes/${encodeURIComponent(member.node_id)}`)}>${member.node_id}</a>` },
    { name: 'state', title: 'State', width: '116px', cell: (/** @type {any} */ member) => html`<${State} state=${memberState(member, job)} label=${member.state} />` },
    { name: 'gpus', title: 'GPUs', from: 'medium', cell: (/** @type {any} */ member) => html`<span class="mono">${member.gpus.map((/** @type {any} */ gpu) => (gpu.share < 100 ? `${gpu.uuid} (${gpu.share} %)` : gpu.uuid)).join(' ')}</span>` },
    { name: 'exit', title: 'Exit', width: '64px', right: true, cell: (/** @type {any} */ member) => (member.signal ? `sig ${member.signal}` : (member.exit_code ?? '')) },
    { name: 'why', title: 'Reason', width: '24%', from: 'large', cell: (/** @type {any} */ member) => html`<span title=${member.detail}>${why(member, job)}</span>` },
    { name: 'logs', title: '', width: '64px', right: true, cell: (/** @type {any} */ member) => html`<a href=${href(`/jobs/${job.id}`, { tab: 'logs', rank: member.rank || undefined })} aria-label=${`Logs of rank ${member.rank}`}>Logs</a>` },
  ];
  return html`<div class="ranks"><${Table} label="Ranks" rows=${job.members} columns=${columns} keyOf=${(/** @type {any} */ member) => String(member.rank)} /></div>`;
}
