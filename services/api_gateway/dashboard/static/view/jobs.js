// @ts-check
/** Pure: a job in words, its phases, and a list of jobs that changes arrive for. */
import { duration, millis, sentence } from './format.js';

export const LIVE = ['pending', 'queued', 'begun', 'placed', 'running', 'releasing'];
export const ENDED = ['completed', 'failed', 'cancelled', 'rejected'];
export const STATES = [...LIVE, ...ENDED];
export const WAITING = ['pending', 'queued'];
export const ON_NODES = ['placed', 'running', 'releasing'];

/** @typedef {Record<string, any>} Job */

/** @param {Job} job */
export const title = (job) => job.name || job.id;

/** @param {Job} job */
export const hasEnded = (job) => ENDED.includes(job.state);

/** @param {Job} job */
export function request(job) {
  const share = job.gpu_share < 100 ? `${job.gpu_share / 100} of ` : '';
  if (!job.gpus) return job.nodes > 1 ? `${job.nodes} nodes` : 'no GPU';
  const range = job.nodes_max > job.nodes ? `${job.nodes}–${job.nodes_max}` : `${job.nodes}`;
  const each = `${share}${job.gpus} GPU${job.gpus > 1 ? 's' : ''}`;
  return job.nodes > 1 || job.nodes_max > 1 ? `${range} × ${each}` : each;
}

/** How long it has waited or run, in words. @param {Job} job @param {number} now */
export function span(job, now) {
  const started = millis(job.started_at);
  const ended = millis(job.ended_at);
  if (started !== null) return duration(((ended ?? now) - started) / 1000);
  const from = millis(job.submitted_at);
  return from === null ? '–' : duration(((ended ?? now) - from) / 1000);
}

/** Why its process never began, as a sentence; empty if it began. @param {Job} job */
export function neverBegan(job) {
  const member = job.members?.find((/** @type {any} */ each) => each.reason === 'exec_failed' && each.detail);
  if (!member) return '';
  const code = member.exit_code === null ? '' : ` (exit code ${member.exit_code})`;
  return sentence(`${member.detail.split(' in PATH=')[0]} on ${member.node_id}${code}`);
}

/** How it ended, in one line. @param {Job} job */
function ending(job) {
  if (job.state === 'cancelled') return 'stopped on request';
  const code = job.exit_code === null ? '' : `exit code ${job.exit_code}`;
  if (!job.reason || job.reason === job.state) return job.state === 'completed' ? '' : code;
  return [job.reason.replaceAll('_', ' '), job.state === 'failed' && code].filter(Boolean).join(', ');
}

/** Why it is as it is, in one line. @param {Job} job */
export function note(job) {
  if (job.held) return 'held until it is released';
  if (job.array) {
    return Object.entries(job.array.states)
      .map(([state, n]) => `${n} ${state}`)
      .join(', ');
  }
  if (hasEnded(job)) return neverBegan(job) || ending(job);
  return job.waits_for && job.state !== 'running' ? `waits for ${job.waits_for}` : job.reason;
}

/** The phases of its current attempt, for a bar. @param {Job} job @param {number} now */
export function phases(job, now) {
  const marks = [
    ['waiting', millis(job.submitted_at)],
    ['placed', millis(job.placed_at)],
    ['running', millis(job.started_at)],
  ];
  const end = millis(job.ended_at) ?? now;
  const known = marks.filter(([, at]) => at !== null);
  return known.map(([name, at], place) => ({
    name: String(name),
    from: Number(at),
    ms: Math.max(0, Number(place + 1 < known.length ? known[place + 1][1] : end) - Number(at)),
  }));
}

/**
 * A page of rows after some jobs have changed: rows that match no more leave, new ones come at the
 * side where they belong. Rows beyond `most` are dropped.
 * @param {Job[]} rows @param {Job[]} changed @param {(job: Job) => boolean} matches
 * @param {boolean} newestFirst @param {number} most
 */
export function merged(rows, changed, matches, newestFirst, most) {
  const byId = new Map(rows.map((row) => [row.id, row]));
  for (const job of changed) {
    if (matches(job)) byId.set(job.id, job);
    else byId.delete(job.id);
  }
  const sorted = [...byId.values()].sort((a, b) => (newestFirst ? b.seq - a.seq : a.seq - b.seq));
  return sorted.slice(0, most);
}

/** The filter of a list as a function. @param {Record<string, string>} filter */
export function matcher(filter) {
  const states = filter.state ? filter.state.split(',') : filter.all ? STATES : LIVE;
  return (/** @type {Job} */ job) =>
    states.includes(job.state) &&
    (!filter.user || job.user === filter.user) &&
    (!filter.tenant || job.tenant === filter.tenant) &&
    (!filter.name || job.name === filter.name) &&
    (!filter.kind || job.kind === filter.kind) &&
    !job.element_of;
}

/** The waiting jobs: first those whose places the scheduler has told, then the others. A job that has
 * left the list by now leaves the line too. @param {Job[]} listed @param {any[]} told @param {boolean} complete */
export function inLine(listed, told, complete) {
  const byId = new Map(listed.map((job) => [job.id, job]));
  const places = new Map(told.map((each) => [each.job.id, each]));
  const first = told
    .map((each) => ({ ...(byId.get(each.job.id) ?? each.job), at: each.position, in_s: each.in_s }))
    .filter((job) => !job.held && WAITING.includes(job.state) && (byId.has(job.id) || !complete));
  const rest = inQueueOrder(listed.filter((job) => !places.has(job.id)));
  return [...first, ...rest.map((job) => ({ ...job, at: null, in_s: undefined }))];
}

/** The order in which a queue's default policy takes jobs. @param {Job[]} jobs */
export function inQueueOrder(jobs) {
  return [...jobs].sort(
    (a, b) => Number(a.held) - Number(b.held) || b.priority - a.priority || a.seq - b.seq,
  );
}
