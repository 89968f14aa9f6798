// @ts-check
/** The number of a model's replicas, and the action that changes it. */
import { useState } from 'preact/hooks';
import { change, segment } from '../data/api.js';
import { html } from '../html.js';
import * as lines from '../view/command_lines.js';
import { counted } from '../view/format.js';
import { Action } from './dialog.js';

/** @param {{model: any}} props */
export function Scale({ model }) {
  const [wanted, setWanted] = useState(String(model.wanted));
  const n = Number(wanted);
  return html`<span class="scale"><input type="number" min="0" class="narrow" aria-label="Replicas" value=${wanted} onInput=${(/** @type {any} */ event) => setWanted(event.target.value)} />
    <${Action} title=${`Scale ${model.name} to ${counted(n, 'replica')}?`} text="The scheduler starts or stops replicas until this number runs." line=${lines.scale(model.name, n)} label="Scale" disabled=${wanted === '' || n === model.wanted} run=${() => change('PATCH', `/v1/deployments/${segment(model.name)}`, { replicas: n })} done=${`${model.name} is scaled to ${counted(n, 'replica')}.`} /></span>`;
}
