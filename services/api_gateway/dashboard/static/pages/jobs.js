// @ts-check
/** All jobs, by filters, newest first. */
import { changeQuery, href, moment, place } from '../data/router.js';
import { who } from '../data/session.js';
import { present } from '../data/shown.js';
import { useAnswer, useList } from '../data/use_answer.js';
import { html } from '../html.js';
import { CommandLine, Empty, Foot, Trouble } from '../parts/basics.js';
import { jobColumns } from '../parts/job_columns.js';
import { Table } from '../parts/table.js';
import * as lines from '../view/command_lines.js';
import { count, counted, millis } from '../view/format.js';
import { hasEnded, LIVE, matcher, merged, STATES } from '../view/jobs.js';
import { operates } from '../view/rights.js';

const PAGE = 100;
const HOUR_MS = 3_600_000;
const KEPT_MAX = 20_000;

export default function JobsPage() {
  const { query } = place.value;
  const all = query.all === '1' || Boolean(query.state && !LIVE.includes(query.state));
  const filter = { state: query.state ?? '', user: query.user ?? '', tenant: query.tenant ?? '', name: query.name ?? '', kind: query.kind ?? '', all };
  const matches = matcher({ ...filter, all: all ? '1' : '' });
  const list = useList(
    '/v1/jobs',
    'jobs',
    { ...filter, newest: true, limit: PAGE },
    {
      topic: 'jobs',
      filter: { ...only(filter, ['name']), snapshot: false },
      merge: (rows, changed, complete) => {
        const oldest = complete ? 0 : (rows.at(-1)?.seq ?? 0);
        return merged(rows, changed.filter((job) => job.seq >= oldest), matches, true, KEPT_MAX);
      },
    },
  );
  const set = (/** @type {string} */ name) => (/** @type {any} */ event) => changeQuery({ [name]: event.target.value.trim() || undefined });
  return html`<div class="page filled">
    <div class="page-head">
      <h1>Jobs</h1>
      <span class="sub">${list.rows.length ? `${counted(list.rows.length, 'job')}${list.next === null ? '' : ' so far'}` : ''}</span>
    </div>
    <div class="toolbar" role="search">
      <select aria-label="State" value=${query.state ?? (all ? 'any' : '')} onChange=${(/** @type {any} */ event) => changeQuery(event.target.value === 'any' ? { all: 1, state: undefined } : { state: event.target.value || undefined, all: undefined })}>
        <option value="">Active jobs</option>
        <option value="any">All jobs</option>
        ${STATES.map((state) => html`<option key=${state} value=${state}>${state}</option>`)}
      </select>
      <select aria-label="Kind" value=${filter.kind} onChange=${set('kind')}>
        <option value="">Any kind</option>
        <option value="job">jobs with a command</option>
        <option value="replica">replicas of models</option>
        <option value="allocation">allocations</option>
      </select>
      <input type="search" aria-label="Name" placeholder="Name" value=${filter.name} onChange=${set('name')} />
      <input type="search" aria-label="User" placeholder="User" value=${filter.user} onChange=${set('user')} />
      ${operates(who()) && html`<input type="search" aria-label="Tenant" placeholder="Tenant" value=${filter.tenant} onChange=${set('tenant')} />`}
      ${query.user !== who()?.user && html`<button type="button" onClick=${() => changeQuery({ user: who()?.user })}>Only mine</button>`}
      ${Object.values(only(filter)).some(Boolean) && html`<button type="button" class="quiet" onClick=${() => changeQuery({ state: undefined, user: undefined, tenant: undefined, name: undefined, kind: undefined, all: undefined })}>Clear</button>`}
    </div>
    <${Trouble} error=${list.error} retry=${list.again} />
    <section class="panel fill" aria-label="Jobs"><div class="content">
      <${Table}
        label="Jobs"
        rows=${list.rows}
        columns=${jobColumns(present.value)}
        keyOf=${(/** @type {any} */ job) => job.id}
        urlOf=${(/** @type {any} */ job) => href(`/jobs/${job.id}`)}
        total=${list.next === null ? list.rows.length : -1}
        onEnd=${list.more}
        loading=${list.loading}
        empty=${html`<${Empty} title=${Object.values(only(filter)).some(Boolean) ? 'No job matches' : 'No job is active'}>
          ${!all && !filter.state && html`<${EndedLately} filter=${filter} />`}
          <span><a href=${href('/submit')}>Submit a job</a> or run one from the command line:</span>
          <${CommandLine} line="muster run --gpus 1 -- nvidia-smi" />
        <//>`}
      />
    </div></section>
    <${Foot} line=${lines.jobs({ state: filter.state, user: filter.user, kind: filter.kind, all: all && !filter.state })} />
  </div>`;
}

/** How many jobs ended in the last hour, for a list of active ones that is empty. @param {{filter: Record<string, any>}} props */
function EndedLately({ filter }) {
  const { data } = useAnswer('/v1/jobs', { ...filter, all: true, newest: true, limit: PAGE });
  const ended = (data?.jobs ?? []).filter((/** @type {any} */ job) => hasEnded(job) && (millis(job.ended_at) ?? 0) > present.value - HOUR_MS).length;
  if (!ended) return null;
  return html`<p>${ended === PAGE ? `More than ${count(ended)}` : count(ended)} ended in the last hour: <a href=${href('/jobs', { ...only(filter), all: 1 })}>show</a></p>`;
}

/** The given parts of a filter. @param {Record<string, any>} filter @param {string[]} without */
const only = (filter, without = []) => Object.fromEntries(Object.entries(filter).filter(([name, value]) => value && name !== 'all' && !without.includes(name)));
