// @ts-check
/** The nodes: how they are, what they have free, and taking them out of service. */
import { segment } from '../data/api.js';
import { changeQuery, href, place } from '../data/router.js';
import { who } from '../data/session.js';
import { present } from '../data/shown.js';
import { useList } from '../data/use_answer.js';
import { html } from '../html.js';
import { CommandLine, Empty, Foot, Trouble } from '../parts/basics.js';
import { NodeActions } from '../parts/node_actions.js';
import { Bar, State } from '../parts/state.js';
import { Table } from '../parts/table.js';
import { ago, counted, gpus, millis } from '../view/format.js';
import { byId, inOrder, nodeNote } from '../view/nodes.js';
import { operates } from '../view/rights.js';

const PAGE = 200;

export default function NodesPage() {
  const { query } = place.value;
  const state = query.state ?? '';
  const list = useList('/v1/nodes', 'nodes', { state, limit: PAGE }, {
    topic: 'nodes',
    filter: { snapshot: false },
    merge: (rows, changed, complete) => byId(rows, changed, complete, (node) => (state ? node.state === state : node.state !== 'removed')),
  });
  const url = (/** @type {any} */ node) => href(`/nodes/${segment(node.id)}`);
  const columns = [
    { name: 'id', title: 'Node', width: '22%', cell: (/** @type {any} */ node) => html`<a class="strong" href=${url(node)}>${node.id}</a>` },
    { name: 'state', title: 'State', width: '124px', cell: (/** @type {any} */ node) => html`<${State} state=${node.state} />` },
    {
      name: 'gpus',
      title: 'GPUs held',
      width: '164px',
      from: 'medium',
      cell: (/** @type {any} */ node) => html`<span class="cell-bar"><${Bar} whole=${node.gpus_total * 100} label=${`${gpus(node.held_share)} of ${node.gpus_total} GPUs held`} parts=${[{ value: node.held_share, tone: 'run', name: 'held' }]} /><span>${gpus(node.held_share)} / ${node.gpus_total}</span></span>`,
    },
    { name: 'model', title: 'GPU', width: '13%', from: 'medium', cell: (/** @type {any} */ node) => node.gpu_model },
    { name: 'jobs', title: 'Jobs', width: '56px', right: true, cell: (/** @type {any} */ node) => node.job_ids.length || '' },
    { name: 'heard', title: 'Last seen', width: '92px', right: true, from: 'large', cell: (/** @type {any} */ node) => html`<span class="muted">${node.last_heartbeat ? ago(millis(node.last_heartbeat), present.value) : ''}</span>` },
    { name: 'note', title: 'Note', from: 'large', cell: (/** @type {any} */ node) => html`<span class="muted" title=${nodeNote(node)}>${nodeNote(node)}</span>` },
    ...(operates(who()) ? [{ name: 'act', title: '', width: '150px', right: true, from: 'medium', cell: (/** @type {any} */ node) => html`<span class="actions"><${NodeActions} node=${node} small=${true} /></span>` }] : []),
  ];
  return html`<div class="page filled">
    <div class="page-head"><h1>Nodes</h1><span class="sub">${list.rows.length ? `${counted(list.rows.length, 'node')}${list.next === null ? '' : ' so far'}` : ''}</span></div>
    <div class="toolbar">
      <select aria-label="State" value=${state} onChange=${(/** @type {any} */ event) => changeQuery({ state: event.target.value || undefined })}>
        <option value="">All nodes</option>
        ${['healthy', 'degraded', 'unreachable', 'removed'].map((each) => html`<option key=${each} value=${each}>${each}</option>`)}
      </select>
    </div>
    <${Trouble} error=${list.error} retry=${list.again} />
    <section class="panel fill" aria-label="Nodes"><div class="content">
      <${Table} label="Nodes" rows=${inOrder(list.rows)} columns=${columns} keyOf=${(/** @type {any} */ node) => node.id} urlOf=${url} onEnd=${list.more} loading=${list.loading}
        empty=${html`<${Empty} title=${state ? `No node is ${state}` : 'No node has registered yet'}><${CommandLine} line="muster node add node-1" /><//>`} />
    </div></section>
    <${Foot} line="muster nodes" />
  </div>`;
}
