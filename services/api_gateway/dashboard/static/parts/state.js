// @ts-check
/** States of jobs, nodes, GPUs and models: a shape, a word and a colour, never the colour alone. */
import { html } from '../html.js';

const SHAPES = {
  dotted: 'M6 1.5a4.5 4.5 0 0 1 0 9M6 10.5a4.5 4.5 0 0 1 0-9',
  ring: 'M6 1.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9z',
  disc: 'M6 1.2a4.8 4.8 0 1 0 0 9.6 4.8 4.8 0 0 0 0-9.6z',
  half: 'M6 1.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9zM6 1.5v9',
  check: 'M1.8 6.4l2.8 2.8 5.6-6.2',
  cross: 'M2.2 2.2l7.6 7.6M9.8 2.2L2.2 9.8',
  slash: 'M6 1.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9zM2.8 9.2l6.4-6.4',
  triangle: 'M6 1.6L11 10.4H1z',
  square: 'M2 2h8v8H2z',
};

const LOOKS = {
  pending: ['wait', 'dotted'],
  queued: ['wait', 'ring'],
  begun: ['wait', 'half'],
  placed: ['place', 'half'],
  running: ['run', 'disc'],
  releasing: ['place', 'half'],
  completed: ['good', 'check'],
  failed: ['bad', 'cross'],
  cancelled: ['off', 'slash'],
  rejected: ['bad', 'square'],
  held: ['wait', 'square'],
  healthy: ['good', 'check'],
  degraded: ['warn', 'triangle'],
  unreachable: ['bad', 'cross'],
  removed: ['off', 'slash'],
  online: ['good', 'check'],
  draining: ['warn', 'triangle'],
  offline: ['off', 'slash'],
  resetting: ['bad', 'half'],
  available: ['good', 'ring'],
  allocated: ['place', 'half'],
  in_use: ['run', 'disc'],
  maintenance: ['warn', 'triangle'],
  error: ['bad', 'cross'],
  ready: ['good', 'check'],
  starting: ['place', 'half'],
  waiting: ['wait', 'ring'],
  unready: ['bad', 'triangle'],
  redeploying: ['place', 'half'],
  crash_looping: ['bad', 'cross'],
  stopping: ['off', 'half'],
  undeployed: ['off', 'slash'],
  denied: ['bad', 'cross'],
};
const FILLED = ['disc', 'triangle', 'square'];

/** @param {{state: string, label?: string}} props */
export function State({ state, label }) {
  const [tone, shape] = LOOKS[/** @type {keyof typeof LOOKS} */ (state.toLowerCase())] ?? ['off', 'ring'];
  const d = SHAPES[/** @type {keyof typeof SHAPES} */ (shape)];
  return html`<span class=${`state tone-${tone}`}>
    <svg viewBox="0 0 12 12" aria-hidden="true" class=${FILLED.includes(shape) ? 'filled' : ''}><path d=${d} /></svg>
    ${label ?? state.replaceAll('_', ' ').toLowerCase()}
  </span>`;
}

/** A bar of parts of a whole, with its meaning in words. @param {{parts: {value: number, tone: string, name: string}[], whole: number, label: string}} props */
export function Bar({ parts, whole, label }) {
  return html`<span class="bar" role="img" aria-label=${label} title=${label}>
    ${parts.map(
      (part) =>
        part.value > 0 &&
        html`<i class=${`fill-${part.tone}`} style=${{ width: `${Math.min(100, (100 * part.value) / Math.max(whole, 1e-9))}%` }}></i>`,
    )}
  </span>`;
}
