// @ts-check
/** The table behind the fleet map: a row for each node. */
import { href } from '../data/router.js';
import { html } from '../html.js';
import { condition, holderName } from '../view/fleet_words.js';
import { gpus } from '../view/format.js';
import { Bar, State } from './state.js';
import { Table } from './table.js';

/** @param {{fleet: any}} props */
export function FleetTable({ fleet }) {
  const version = fleet.version.value;
  const url = (/** @type {any} */ node) => href(`/nodes/${encodeURIComponent(node.id)}`);
  const held = (/** @type {any} */ node) => node.gpus.reduce((/** @type {number} */ sum, /** @type {any} */ gpu) => sum + (100 - gpu.free), 0);
  const columns = [
    { name: 'id', title: 'Node', width: '26%', cell: (/** @type {any} */ node) => html`<a class="strong" href=${url(node)}>${node.id}</a>` },
    { name: 'state', title: 'State', width: '128px', cell: (/** @type {any} */ node) => html`<${State} state=${node.state} />` },
    {
      name: 'gpus',
      title: 'GPUs held',
      width: '170px',
      cell: (/** @type {any} */ node) =>
        html`<span class="cell-bar"><${Bar} whole=${node.gpus.length * 100} label=${`${gpus(held(node))} of ${node.gpus.length} GPUs held`} parts=${[{ value: held(node), tone: 'run', name: 'held' }]} /><span>${gpus(held(node))} / ${node.gpus.length}</span></span>`,
    },
    { name: 'sick', title: 'Not healthy', width: '100px', right: true, from: 'medium', cell: (/** @type {any} */ node) => node.gpus.filter((/** @type {any} */ gpu) => condition(gpu, node.state) !== 'ok').length || '' },
    {
      name: 'jobs',
      title: 'Jobs',
      from: 'medium',
      cell: (/** @type {any} */ node) => [...new Set(node.gpus.flatMap((/** @type {any} */ gpu) => gpu.holders.map(holderName)))].join(', '),
    },
    { name: 'model', title: 'Model', width: '16%', from: 'large', cell: (/** @type {any} */ node) => node.gpus[0]?.model ?? '' },
  ];
  return html`<${Table} key="fleet" label="Nodes and their GPUs" rows=${fleet.nodes} columns=${columns} keyOf=${(/** @type {any} */ node) => node.id} urlOf=${url} version=${version} />`;
}
