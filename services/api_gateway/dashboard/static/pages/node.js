// @ts-check
/** One node: its GPUs and their errors, its jobs, its drivers and how it isolates jobs. */
import { change, segment } from '../data/api.js';
import { now } from '../data/clock.js';
import { href } from '../data/router.js';
import { who } from '../data/session.js';
import { present } from '../data/shown.js';
import { useAnswer } from '../data/use_answer.js';
import { html } from '../html.js';
import { Empty, Facts, Foot, Loading, Panel, Trouble } from '../parts/basics.js';
import { Action } from '../parts/dialog.js';
import { Lines } from '../parts/gpu_lines.js';
import { NodeActions } from '../parts/node_actions.js';
import { Bar, State } from '../parts/state.js';
import { Table } from '../parts/table.js';
import * as lines from '../view/command_lines.js';
import { ago, bytes, clock, counted, decimal, millis } from '../view/format.js';
import { nodeNote } from '../view/nodes.js';
import { operates } from '../view/rights.js';

/** @param {{name: string}} props */
export default function NodePage({ name }) {
  const { data, error, again } = useAnswer(`/v1/nodes/${segment(name)}`, {}, { topic: 'fleet', filter: { ids: [name], snapshot: false } });
  if (!data) return html`<div class="page"><div class="page-head"><h1>${name}</h1></div><${Trouble} error=${error} retry=${again} />${!error && html`<${Loading} />`}</div>`;
  const { node, gpus, links } = data;
  const services = new Set(gpus.map((/** @type {any} */ gpu) => gpu.service));
  const said = nodeNote(node);
  return html`<div class="page">
    <div class="page-head">
      <h1><a class="crumb" href=${href('/nodes')}>Nodes</a> <span class="crumb" aria-hidden="true">/</span> ${node.id}</h1>
      <${State} state=${node.state} /><span class="sub">${counted(node.gpus_total, 'GPU')} · ${node.gpu_model} · ${node.address}</span>
      <div class="actions"><${NodeActions} node=${node} service=${services.size === 1 ? [...services][0] : ''} /></div>
    </div>
    <${Trouble} error=${error} retry=${again} />
    ${said && html`<p class="note warn">${said}</p>`}
    <${Panel} title="GPUs" class="flush" actions=${html`<a href=${href('/', { node: node.id })}>On the map</a>`}><${Gpus} gpus=${gpus} /><//>
    <${Errors} gpus=${gpus} />
    ${node.state !== 'unreachable' && gpus.length > 0 && html`<${Lines} nodes=${[node.id]} uuids=${null} />`}
    <div class="columns even">
      <${Panel} title="Jobs here">
        ${node.job_ids.length ? html`<ul class="links">${node.job_ids.map((/** @type {string} */ id) => html`<li key=${id}><a class="mono" href=${href(`/jobs/${segment(id)}`)}>${id}</a></li>`)}</ul>` : html`<p class="muted">No job that you may see.</p>`}
      <//>
      <${Panel} title="Host">
        <${Facts}
          rows=${[
            ['Last seen', node.last_heartbeat && ago(millis(node.last_heartbeat), present.value)],
            ['Registered', clock(millis(node.registered_at), now.value)],
            ['Agent', node.version],
            ['Processors', node.cpus_milli ? `${decimal(node.cpus_milli_held / 1000)} of ${decimal(node.cpus_milli / 1000)} held` : ''],
            ['Memory', node.memory_bytes ? `${bytes(node.memory_bytes_held)} of ${bytes(node.memory_bytes)} held` : ''],
            ['Rack', node.rack],
            ['Links', node.transport && `${node.transport}: ${node.transport_why}`],
            ['Drivers', Object.entries(node.drivers).map(([key, value]) => `${key} ${value}`).join(', ')],
            ['Labels', Object.entries(node.labels).map(([key, value]) => `${key}=${value}`).join(', ')],
            ['Links to', links.map((/** @type {any} */ each) => `${each.node_id} (${each.transport})`).join(', ')],
          ]}
        />
      <//>
    </div>
    ${Object.keys(node.isolation).length > 0 && html`<${Panel} title="Isolation between jobs"><${Facts} rows=${Object.entries(node.isolation)} /><//>`}
    <${Foot} line=${`muster nodes ${lines.quoted(node.id)}`} />
  </div>`;
}

/** @param {{gpus: any[]}} props */
function Gpus({ gpus }) {
  const columns = [
    { name: 'index', title: 'GPU', width: '58px', cell: (/** @type {any} */ gpu) => html`<b>${gpu.index}</b>` },
    { name: 'state', title: 'State', width: '130px', cell: (/** @type {any} */ gpu) => html`<${State} state=${gpu.state} />` },
    { name: 'uuid', title: 'UUID', width: '22%', from: 'large', mono: true, cell: (/** @type {any} */ gpu) => gpu.uuid },
    { name: 'held', title: 'Held', width: '120px', from: 'medium', cell: (/** @type {any} */ gpu) => html`<span class="cell-bar"><${Bar} whole=${100} label=${`${gpu.held_share} % held`} parts=${[{ value: gpu.held_share, tone: 'run', name: 'held' }]} /><span>${gpu.held_share} %</span></span>` },
    { name: 'holders', title: 'Jobs', cell: (/** @type {any} */ gpu) => gpu.holders.map((/** @type {any} */ each) => (each.job_id ? html`<a class="mono" href=${href(`/jobs/${each.job_id}`)}>${each.job_id}</a> ` : html`<span class="muted">another tenant </span>`)) },
    { name: 'note', title: 'Note', width: '22%', from: 'medium', cell: (/** @type {any} */ gpu) => html`<span class="muted" title=${`${gpu.detail} ${gpu.suspicion}`}>${[gpu.service === 'online' ? '' : gpu.service, gpu.reason, gpu.detail, gpu.suspicion].filter(Boolean).join(' · ')}</span>` },
    ...(operates(who())
      ? [
          {
            name: 'act', title: '', width: '92px', right: true, cell: (/** @type {any} */ gpu) => {
              const online = gpu.service === 'online';
              return html`<${Action} title=${online ? `Drain GPU ${gpu.index}?` : `Return GPU ${gpu.index} to service?`} text=${online ? 'It takes no new jobs. Running jobs continue.' : 'New jobs may be placed on it again.'} line=${online ? lines.drainGpu(gpu.uuid) : lines.onlineGpu(gpu.uuid)} label=${online ? 'Drain' : 'Online'} run=${() => change('PUT', `/v1/gpus/${segment(gpu.uuid)}/service`, { service: online ? 'draining' : 'online' })} done=${`GPU ${gpu.index} is ${online ? 'being drained' : 'back in service'}.`} />`;
            },
          },
        ]
      : []),
  ];
  return html`<${Table} label="GPUs" rows=${gpus} columns=${columns} keyOf=${(/** @type {any} */ gpu) => gpu.uuid} empty=${html`<${Empty} title="This node has no GPU" />`} />`;
}

/** @param {{gpus: any[]}} props */
function Errors({ gpus }) {
  const rows = gpus.flatMap((gpu) => gpu.errors.map((/** @type {any} */ error, /** @type {number} */ i) => ({ ...error, gpu: gpu.index, key: `${gpu.uuid}-${i}` })));
  if (!rows.length) return null;
  const columns = [
    { name: 'gpu', title: 'GPU', width: '58px', cell: (/** @type {any} */ each) => html`<b>${each.gpu}</b>` },
    { name: 'code', title: 'Error', width: '30%', cell: (/** @type {any} */ each) => String(each.code ?? each.error ?? each.kind ?? each.reason ?? '') },
    { name: 'detail', title: 'Detail', cell: (/** @type {any} */ each) => html`<span class="muted">${Object.entries(each).filter(([key, value]) => typeof value === 'string' && !['key', 'code', 'error'].includes(key) && value).map(([, value]) => value).join(' · ')}</span>` },
  ];
  return html`<${Panel} title="Errors of the GPUs" class="flush"><${Table} label="Errors" rows=${rows} columns=${columns} keyOf=${(/** @type {any} */ each) => each.key} /><//>`;
}
