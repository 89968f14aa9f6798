// @ts-check
/** The log: every fact, who wrote it, what the gateway refused, and whether the archive still stands. */
import { useEffect, useRef, useState } from 'preact/hooks';
import { get } from '../data/api.js';
import { now } from '../data/clock.js';
import { changeQuery, href, moment, place } from '../data/router.js';
import { who } from '../data/session.js';
import { subscribe } from '../data/stream.js';
import { html } from '../html.js';
import { CommandLine, Empty, Facts, Panel, Tabs, Trouble } from '../parts/basics.js';
import { Fact } from '../parts/fact.js';
import { State } from '../parts/state.js';
import { Table } from '../parts/table.js';
import { clock, count, millis } from '../view/format.js';
import { operates } from '../view/rights.js';

const PAGE = 200;
const WINDOWS = [1000, 8000, 20_000];
const KEPT_MAX = 5000;
/** Answers of 1,000 rows that one step reads at most. */
const PAGES_MAX = 20;

export default function AuditPage() {
  const { query } = place.value;
  const tab = query.tab ?? 'facts';
  const may = operates(who());
  const tabs = [
    { name: 'facts', text: 'Facts', url: href('/audit') },
    ...(may ? [{ name: 'access', text: 'Requests', url: href('/audit', { tab: 'access' }) }, { name: 'chain', text: 'Chain', url: href('/audit', { tab: 'chain' }) }] : []),
  ];
  return html`<div class="page filled">
    <div class="page-head"><h1>Audit</h1></div>
    <${Tabs} label="Parts of the audit" value=${tab} tabs=${tabs} />
    ${tab === 'facts' && html`<${FactList} query=${query} />`}
    ${tab === 'access' && may && html`<${Access} query=${query} />`}
    ${tab === 'chain' && may && html`<${Chain} />`}
  </div>`;
}

/**
 * All rows of the commits after `after` and up to `upto`, oldest first: as many answers as it takes.
 * @param {string} path @param {string} name @param {Record<string, any>} query @param {number} upto 0: the end
 * @returns {Promise<{rows: any[], seq: number}>}
 */
async function rowsUpTo(path, name, query, upto = 0) {
  let page = await get(path, { ...query, limit: 1000 });
  const rows = [...page[name]];
  const end = upto || page.seq;
  for (let pages = 1; pages < PAGES_MAX && page.next !== null && page.next < end && page.more !== false; pages += 1) {
    page = await get(path, { ...query, last: undefined, after: page.next, limit: 1000 });
    rows.push(...page[name]);
  }
  return { rows, seq: Math.max(end, page.next ?? 0) };
}

/** Rows from the newest back, in windows of the log. @param {string} path @param {string} name @param {Record<string, any>} filter */
function useBackwards(path, name, filter) {
  const [state, setState] = useState(/** @type {{rows: any[], from: number|null, error: Error|null, loading: boolean}} */ ({ rows: [], from: null, error: null, loading: true }));
  const held = useRef(state);
  const at = moment.value;
  const key = JSON.stringify([path, filter, at]);
  const shown = useRef(key);
  const show = (/** @type {any} */ changes) => {
    held.current = { ...held.current, ...changes };
    setState(held.current);
  };
  const older = async () => {
    const { from } = held.current;
    if (held.current.loading || from === null || from <= 1) return;
    show({ loading: true });
    const asked = shown.current;
    try {
      let rows = /** @type {any[]} */ ([]);
      let start = from;
      for (const size of WINDOWS) {
        const after = Math.max(0, start - size - 1);
        const page = await rowsUpTo(path, name, { ...filter, after }, start - 1);
        if (asked !== shown.current) return;
        const found = page.rows.filter((/** @type {any} */ row) => row.seq < start);
        start = after + 1;
        rows = [...found.reverse(), ...rows];
        if (rows.length || after === 0) break;
      }
      show({ rows: [...held.current.rows, ...rows].slice(0, KEPT_MAX), from: start, loading: false });
    } catch (error) {
      if (asked === shown.current) show({ error, loading: false });
    }
  };
  useEffect(() => {
    shown.current = key;
    let gone = false;
    let leave = () => {};
    const first = async () => {
      held.current = { rows: [], from: null, error: null, loading: true };
      setState(held.current);
      try {
        const begin = at ? { after: Math.max(0, at - 500) } : { last: PAGE };
        const page = await rowsUpTo(path, name, { ...filter, ...begin }, at);
        if (gone) return;
        const rows = page.rows.filter((/** @type {any} */ row) => !at || row.seq <= at).reverse();
        const oldest = rows.at(-1)?.seq ?? (at ? at - 500 : page.seq);
        show({ rows, from: Math.max(1, oldest), loading: false });
        if (at || path !== '/v1/events') return;
        leave = subscribe('events', {
          filter,
          after: page.seq,
          hear: (event, data) => event === 'fact' && show({ rows: [data, ...held.current.rows].slice(0, KEPT_MAX) }),
          poll: first,
        });
      } catch (error) {
        if (!gone) show({ error, loading: false });
      }
    };
    first();
    return () => {
      gone = true;
      leave();
    };
  }, [key]);
  return { ...state, older };
}

/** @param {{query: Record<string, string>}} props */
function FactList({ query }) {
  const filter = { kind: query.kind ?? '', job: query.job ?? '', node: query.node ?? '' };
  const list = useBackwards('/v1/events', 'events', Object.fromEntries(Object.entries(filter).filter(([, value]) => value)));
  const set = (/** @type {string} */ name) => (/** @type {any} */ event) => changeQuery({ [name]: event.target.value.trim() || undefined });
  const [opened, setOpened] = useState('');
  const rows = list.rows.map((row, i) => ({ ...row, key: `${row.seq}/${row.kind}/${list.rows.length - i}` }));
  const columns = [
    { name: 'seq', title: 'Commit', width: '90px', right: true, cell: (/** @type {any} */ row) => html`<a class="muted" href=${href('/audit', { ...query, at: row.seq })} title="Show the cluster at this commit">${count(row.seq)}</a>` },
    { name: 'at', title: 'Time', width: '120px', cell: (/** @type {any} */ row) => html`<time datetime=${row.at}>${clock(millis(row.at), now.value)}</time>` },
    { name: 'kind', title: 'Fact', width: '180px', from: 'medium', mono: true, cell: (/** @type {any} */ row) => row.kind },
    { name: 'summary', title: 'What it says', cell: (/** @type {any} */ row) => html`${row.fact.job_id && html`<a class="mono" href=${href(`/jobs/${row.fact.job_id}`)}>${row.fact.job_id}</a> `}<span title=${row.summary}>${row.summary}</span>` },
    { name: 'writer', title: 'Written by', width: '160px', from: 'large', mono: true, cell: (/** @type {any} */ row) => html`<span class="muted">${row.writer}</span>` },
    { name: 'open', title: '', width: '84px', right: true, cell: (/** @type {any} */ row) => html`<button type="button" aria-expanded=${opened === row.key} onClick=${() => setOpened(opened === row.key ? '' : row.key)}>Show</button>` },
  ];
  const line = ['muster log', filter.job && `--job ${filter.job}`, filter.node && `--node ${filter.node}`, filter.kind && `--kind ${filter.kind}`].filter(Boolean).join(' ');
  return html`
    <div class="toolbar" role="search">
      <input type="search" aria-label="Kind of fact" placeholder="Kind, for example job." value=${filter.kind} onChange=${set('kind')} />
      <input type="search" aria-label="Job" placeholder="Job" value=${filter.job} onChange=${set('job')} />
      <input type="search" aria-label="Node" placeholder="Node" value=${filter.node} onChange=${set('node')} />
    </div>
    <${Trouble} error=${list.error} />
    <section class="panel fill" aria-label="Facts"><div class="content">
      <${Table} label="Facts" rows=${rows} columns=${columns} keyOf=${(/** @type {any} */ row) => row.key} onRow=${(/** @type {any} */ row) => setOpened(opened === row.key ? '' : row.key)} opened=${opened} onEnd=${list.older} loading=${list.loading}
        detail=${(/** @type {any} */ row) => html`<${Fact} fact=${row} />`} empty=${html`<${Empty} title="No fact matches" />`} />
    </div></section>
    <div class="foot"><${CommandLine} line=${line} /></div>`;
}

/** @param {{query: Record<string, string>}} props */
function Access({ query }) {
  const denied = query.denied === '1';
  const list = useBackwards('/v1/access', 'access', denied ? { denied: true } : {});
  const rows = list.rows.map((row, i) => ({ ...row, key: `${row.request_id}/${list.rows.length - i}` }));
  const columns = [
    { name: 'at', title: 'Time', width: '120px', cell: (/** @type {any} */ row) => clock(millis(row.at), now.value) },
    { name: 'status', title: 'Status', width: '72px', cell: (/** @type {any} */ row) => (row.denied ? html`<${State} state="denied" label=${String(row.status)} />` : String(row.status || '–')) },
    { name: 'route', title: 'Request', cell: (/** @type {any} */ row) => html`<span class="mono">${row.method} ${row.route}</span> <span class="muted">${row.ids.join(' ')}</span>` },
    { name: 'user', title: 'User', width: '18%', from: 'medium', cell: (/** @type {any} */ row) => html`${row.user} <span class="muted">${row.tenant}</span>` },
    { name: 'source', title: 'From', width: '120px', from: 'large', mono: true, cell: (/** @type {any} */ row) => row.source },
    { name: 'denied', title: 'Refused because', width: '26%', from: 'large', cell: (/** @type {any} */ row) => html`<span title=${row.denied}>${row.denied}</span>` },
  ];
  return html`
    <div class="toolbar"><label class="check"><input type="checkbox" checked=${denied} onChange=${(/** @type {any} */ event) => changeQuery({ denied: event.target.checked ? 1 : undefined })} />Only refused ones</label></div>
    <${Trouble} error=${list.error} />
    <section class="panel fill" aria-label="Requests"><div class="content">
      <${Table} label="Requests" rows=${rows} columns=${columns} keyOf=${(/** @type {any} */ row) => row.key} onEnd=${list.older} loading=${list.loading} empty=${html`<${Empty} title=${denied ? 'No request was refused' : 'No request in this part of the log'} />`} />
    </div></section>
    <div class="foot"><${CommandLine} line=${`muster log --access${denied ? ' --denied' : ''}`} /></div>`;
}

function Chain() {
  const [found, setFound] = useState(/** @type {{head?: any, error?: Error}} */ ({}));
  useEffect(() => {
    get('/v1/audit/head').then((head) => setFound({ head }), (error) => setFound({ error }));
  }, []);
  const { head, error } = found;
  const flat = Object.entries(head ?? {}).filter(([, value]) => typeof value !== 'object');
  return html`<${Panel} title="The newest signed head of the chain">
    <p class="muted">Audit archives every commit and chains it to the one before by its hash. A head is signed, so that an auditor who keeps one can prove later that nothing before it was changed.</p>
    ${/** @type {any} */ (error)?.status === 404 ? html`<p class="note">${error?.message}</p>` : html`<${Trouble} error=${error} />`}
    ${head && html`<${Facts} rows=${flat.map(([name, value]) => [name.replaceAll('_', ' '), html`<span class="mono">${String(value)}</span>`])} />`}
    <p class="muted">Check the whole archive:</p>
    <${CommandLine} line="muster audit verify" label="Check the archive" />
  <//>`;
}
