// @ts-check
/** The GPU that is chosen on the fleet map: its holders and what can be done. */
import { change, segment } from '../data/api.js';
import { href } from '../data/router.js';
import { who } from '../data/session.js';
import { html } from '../html.js';
import * as lines from '../view/command_lines.js';
import { conditionWord, holderName } from '../view/fleet_words.js';
import { operates } from '../view/rights.js';
import { Action } from './dialog.js';
import { Panel } from './basics.js';
import { Icon } from './icons.js';
import { Bar, State } from './state.js';

/** @param {{fleet: any, at: {node: number, gpu: number}, version: number, onClose: () => void}} props */
export function Chosen({ fleet, at, onClose }) {
  const node = fleet.nodes[at.node];
  const gpu = node.gpus[Math.max(0, at.gpu)];
  const url = href(`/nodes/${segment(node.id)}`);
  if (!gpu) return null;
  const draining = gpu.service !== 'online';
  const title = html`<a href=${url}>${node.id}</a> · GPU ${gpu.index}`;
  const close = html`<button type="button" class="quiet round" aria-label="Close" onClick=${onClose}><${Icon} name="close" /></button>`;
  return html`<${Panel} title=${title} actions=${close} class="chosen">
    <div class="chosen-head"><${State} state=${gpu.state} label=${conditionWord(gpu, node.state)} /><span class="muted">${gpu.model}${gpu.mig ? ' · MIG' : ''}</span></div>
    <${Bar} whole=${100} label=${`${100 - gpu.free} % held`} parts=${gpu.holders.map((/** @type {any} */ each) => ({ value: each.share, tone: 'run', name: each.job }))} />
    ${gpu.holders.length
      ? html`<ul class="holders">
          ${gpu.holders.map(
            (/** @type {any} */ each) => html`<li key=${each.job}>
              ${each.tenant === null ? html`<span>another tenant</span>` : html`<a href=${href(`/jobs/${each.job}`)}>${holderName(each)}</a>`}
              <span class="muted">${each.tenant ? `${each.tenant}/${each.user}` : ''}</span>
              <b>${each.profile || `${each.share} %`}</b>
            </li>`,
          )}
        </ul>`
      : html`<p class="muted">No job holds it.</p>`}
    ${operates(who()) &&
    html`<div class="toolbar">
      ${draining
        ? html`<${Action} title=${`Return GPU ${gpu.index} of ${node.id} to service?`} text="New jobs may be placed on it again." line=${lines.onlineGpu(gpu.uuid)} label="Return to service" run=${() => change('PUT', `/v1/gpus/${segment(gpu.uuid)}/service`, { service: 'online' })} done=${`GPU ${gpu.index} of ${node.id} is back in service.`} />`
        : html`<${Action} title=${`Drain GPU ${gpu.index} of ${node.id}?`} text="It takes no new jobs. Running jobs continue." line=${lines.drainGpu(gpu.uuid)} label="Drain GPU" run=${() => change('PUT', `/v1/gpus/${segment(gpu.uuid)}/service`, { service: 'draining' })} done=${`GPU ${gpu.index} of ${node.id} is being drained.`} />`}
    </div>`}
  <//>`;
}
