// @ts-check
/** The queues: what waits, in which order, since when, and why. */
import { useState } from 'preact/hooks';
import { segment } from '../data/api.js';
import { size } from '../data/clock.js';
import { changeQuery, href, moment, place } from '../data/router.js';
import { present } from '../data/shown.js';
import { useAnswer, useList } from '../data/use_answer.js';
import { html } from '../html.js';
import { Empty, Foot, Trouble } from '../parts/basics.js';
import { JobActions } from '../parts/job_actions.js';
import { Reason } from '../parts/reason.js';
import { Table } from '../parts/table.js';
import { Why } from '../parts/why.js';
import { count, counted, duration, millis } from '../view/format.js';
import { inLine, matcher, merged, request, title } from '../view/jobs.js';

const PAGE = 200;
const KEPT_MAX = 20_000;
const AGAIN_MS = 10_000;
const WAITS = { state: 'pending,queued' };

export default function QueuePage() {
  const { query } = place.value;
  const chosen = query.queue ?? '';
  const [opened, setOpened] = useState('');
  const queues = useAnswer('/v1/queues', {}, { every: AGAIN_MS });
  const list = useList('/v1/jobs', 'jobs', { ...WAITS, limit: PAGE }, {
    topic: 'jobs',
    filter: { ...WAITS, snapshot: false },
    merge: (rows, changed, complete) => {
      const newest = complete ? Infinity : (rows.at(-1)?.seq ?? Infinity);
      return merged(rows, changed.filter((job) => job.seq <= newest), matcher(WAITS), false, KEPT_MAX);
    },
  });
  const line = useAnswer(moment.value ? null : '/v1/upcoming', { queue: chosen, limit: PAGE }, { every: AGAIN_MS });
  const rows = inLine(list.rows.filter((job) => !chosen || job.queue === chosen), line.data?.jobs ?? [], list.next === null);
  const total = line.data?.total;
  const at = present.value;
  const columns = [
    { name: 'at', title: '#', width: '52px', right: true, cell: (/** @type {any} */ job) => html`<span class="muted">${job.at === null ? '–' : count(job.at)}</span>` },
    { name: 'name', title: 'Job', width: size.value === 'small' ? 'auto' : '18%', cell: (/** @type {any} */ job) => html`<a class="strong" href=${href(`/jobs/${job.id}`)}>${title(job)}</a>` },
    { name: 'user', title: 'User', width: '12%', from: 'medium', cell: (/** @type {any} */ job) => html`${job.user} <span class="muted">${job.tenant}</span>` },
    { name: 'request', title: 'Requests', width: '112px', from: 'medium', cell: request },
    { name: 'priority', title: 'Priority', width: '70px', right: true, from: 'large', cell: (/** @type {any} */ job) => String(job.priority) },
    { name: 'waited', title: 'Waits', width: '80px', right: true, from: 'medium', cell: (/** @type {any} */ job) => duration((at - (millis(job.submitted_at) ?? at)) / 1000) },
    { name: 'start', title: 'Starts', width: '92px', right: true, cell: (/** @type {any} */ job) => html`<span title=${line.data?.basis}>${job.in_s === 0 ? 'now' : job.in_s ? html`~ ${duration(job.in_s)}` : html`<span class="muted">${job.in_s === null ? 'unknown' : ''}</span>`}</span>` },
    { name: 'note', title: 'Reason', from: 'large', cell: (/** @type {any} */ job) => html`<${Reason} job=${job} />` },
    { name: 'why', title: '', width: '78px', right: true, cell: (/** @type {any} */ job) => html`<button type="button" aria-expanded=${opened === job.id} onClick=${() => setOpened(opened === job.id ? '' : job.id)}>Why</button>` },
  ];
  const known = queues.data?.queues ?? [];
  return html`<div class="page filled">
    <div class="page-head"><h1>Queue</h1><span class="sub">${list.loading && !rows.length ? '' : `${counted(total && !chosen ? Math.max(total, rows.length) : rows.length, 'job')} waiting`}</span>${line.error && html`<span class="sub">The scheduler reports no order: by priority, then time.</span>`}</div>
    ${known.length > 0 &&
    html`<ul class="cards" aria-label="Queues">
      ${known.map(
        (/** @type {any} */ queue) => html`<li key=${queue.name}>
          <button type="button" class="card" aria-pressed=${chosen === queue.name} onClick=${() => changeQuery({ queue: chosen === queue.name ? undefined : queue.name })}>
            <span class="strong">${queue.name}</span>
            <span class="pair"><b>${count(queue.jobs_waiting)}</b> waiting</span>
            <span class="pair"><b>${count(queue.jobs_on_nodes)}</b> on nodes</span>
            <span class="muted">${queue.policy || 'priority, then time'}${queue.backfill ? ' · backfill' : ''} · weight ${queue.weight}</span>
            ${queue.note && html`<span class="warn-text">${queue.note}</span>`}
          </button>
        </li>`,
      )}
    </ul>`}
    <${Trouble} error=${list.error ?? queues.error} retry=${list.again} />
    <section class="panel fill" aria-label="Waiting jobs"><div class="content">
      <${Table}
        label="Waiting jobs"
        rows=${rows}
        columns=${columns}
        keyOf=${(/** @type {any} */ job) => job.id}
        onRow=${(/** @type {any} */ job) => setOpened(opened === job.id ? '' : job.id)}
        opened=${opened}
        detail=${(/** @type {any} */ job) => html`<div class="opened-job"><${Why} bare=${true} path=${`/v1/jobs/${segment(job.id)}/why`} name=${job.id} at=${moment.value} state=${job.state} /><div class="toolbar"><${JobActions} job=${job} small=${true} /><a class="button" href=${href(`/jobs/${job.id}`)}>Open the job</a></div></div>`}
        onEnd=${list.more}
        loading=${list.loading}
        empty=${html`<${Empty} title="Nothing waits">Every job that was admitted has its GPUs.<//>`}
      />
    </div></section>
    <${Foot} line="muster ps --all --state pending,queued" />
  </div>`;
}
