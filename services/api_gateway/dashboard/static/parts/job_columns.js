// @ts-check
/** The columns of a list of jobs. */
import { now } from '../data/clock.js';
import { href } from '../data/router.js';
import { html } from '../html.js';
import { clock, millis } from '../view/format.js';
import { note, request, span, title } from '../view/jobs.js';
import { State } from './state.js';

/** @param {number} at the present @param {string[]} without */
export function jobColumns(at, without = []) {
  const columns = [
    { name: 'state', title: 'State', width: '112px', cell: (/** @type {any} */ job) => html`<${State} state=${job.held && job.state === 'queued' ? 'held' : job.state} />` },
    {
      name: 'name',
      title: 'Job',
      cell: (/** @type {any} */ job) => html`<a class="strong" href=${href(`/jobs/${job.id}`)} title=${title(job)}>${title(job)}</a>${job.name && html` <span class="mono muted id">${job.id}</span>`}`,
    },
    { name: 'user', title: 'User', width: '15%', from: 'medium', cell: (/** @type {any} */ job) => html`<span title=${`${job.tenant}/${job.user}`}>${job.user} <span class="muted">${job.tenant}</span></span>` },
    { name: 'request', title: 'Requests', width: '130px', from: 'medium', cell: request },
    { name: 'span', title: 'Time', width: '84px', right: true, cell: (/** @type {any} */ job) => span(job, at) },
    { name: 'submitted', title: 'Submitted', width: '112px', right: true, from: 'large', cell: (/** @type {any} */ job) => clock(millis(job.submitted_at), now.value) },
    { name: 'note', title: 'Note', width: '25%', from: 'large', cell: (/** @type {any} */ job) => html`<span class="muted" title=${note(job)}>${note(job)}</span>` },
  ];
  return columns.filter((column) => !without.includes(column.name));
}
