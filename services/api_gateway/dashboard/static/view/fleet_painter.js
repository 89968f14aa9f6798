// @ts-check
/** Draws blocks of the fleet map into a canvas: a cell for each GPU, a part of it for each holder,
 * and a mark over each GPU that is not well, so that no colour has to be told from another. */
import { hashed } from './colours.js';
import { cellOf, corner } from './fleet_layout.js';
import { condition, holderName, keyOf } from './fleet_words.js';
import { shortened } from './format.js';

const TEXT_FROM = 40;
const FONT = 'system-ui, sans-serif';

/** @typedef {{mode: string, colours: import('./colours.js').Colours, ink: any, only: string}} Style */

/** @param {CanvasRenderingContext2D} draw @param {any} node @param {number} place
 *  @param {import('./fleet_layout.js').Layout} at @param {number} top @param {Style} style */
export function paintNode(draw, node, place, at, top, style) {
  const { x, y } = corner(at, place);
  const down = y - top;
  draw.clearRect(x - 2, down - 2, at.blockWide + 4, at.blockHigh + 4);
  if (at.above) paintName(draw, node, x, down, at, style);
  for (let i = 0; i < node.gpus.length; i += 1) {
    const cell = cellOf(at, i);
    paintGpu(draw, node, node.gpus[i], { x: x + cell.x, y: down + cell.y, w: cell.w, h: cell.h }, style);
  }
  if (at.cell >= 20 && style.mode !== 'health') for (const run of runsOf(node, at)) paintRun(draw, run, x, down, at, style);
  for (let i = 0; i < node.gpus.length; i += 1) {
    const shown = condition(node.gpus[i], node.state);
    if (shown === 'ok') continue;
    const cell = cellOf(at, i);
    paintMark(draw, { x: x + cell.x, y: down + cell.y, w: cell.w, h: cell.h }, shown, style.ink);
  }
}

/** The neighbours that one job holds whole: they are shown as one. @param {any} node
 *  @param {import('./fleet_layout.js').Layout} at */
export function runsOf(node, at) {
  /** @type {{from: number, to: number, holder: any, gpu: any, sick: boolean}[]} */
  const runs = [];
  for (let i = 0; i < node.gpus.length; i += 1) {
    const [holder] = node.gpus[i].holders;
    const sick = condition(node.gpus[i], node.state) !== 'ok';
    const whole = holder && holder.share >= 100 && holder.job;
    const last = runs.at(-1);
    const same = whole && last && !sick && !last.sick && last.to === i - 1 && last.holder.job === holder.job;
    if (same && i % at.columns) last.to = i;
    else if (holder && (whole || node.gpus[i].holders.length === 1)) runs.push({ from: i, to: i, holder, gpu: node.gpus[i], sick });
  }
  return runs;
}

/** Close the gaps inside a run, and write its job's name once. @param {CanvasRenderingContext2D} draw @param {any} run
 *  @param {number} x @param {number} y @param {import('./fleet_layout.js').Layout} at @param {Style} style */
function paintRun(draw, run, x, y, at, style) {
  const first = cellOf(at, run.from);
  const last = cellOf(at, run.to);
  const { fill, on } = colourOf(run.holder, run.gpu, style);
  const dimmed = style.only && keyOf(run.holder, run.gpu, style.mode) !== style.only;
  draw.globalAlpha = dimmed ? 0.16 : 1;
  draw.fillStyle = fill;
  for (let i = run.from; i < run.to; i += 1) {
    const cell = cellOf(at, i);
    draw.fillRect(x + cell.x + cell.w - 1, y + cell.y, Math.floor(at.gap / 2) + 1, cell.h);
    draw.fillRect(x + cell.x + cell.w + Math.ceil(at.gap / 2), y + cell.y, Math.floor(at.gap / 2) + 1, cell.h);
  }
  draw.globalAlpha = 1;
  const held = Math.min(100, run.holder.share);
  const wide = last.x + (last.w * held) / 100 - first.x - (run.sick ? 24 : 10);
  if (wide < TEXT_FROM - 10 || first.h < 15) return;
  draw.fillStyle = dimmed ? style.ink.text : on;
  draw.font = `11px ${FONT}`;
  draw.textBaseline = 'middle';
  draw.fillText(fitting(draw, holderName(run.holder), wide), x + first.x + 5, y + first.y + first.h / 2 + 0.5);
}

/** A text that is cut to a width. @param {CanvasRenderingContext2D} draw @param {string} text @param {number} wide */
function fitting(draw, text, wide) {
  const whole = draw.measureText(text).width;
  if (whole <= wide) return text;
  return shortened(text, Math.max(2, Math.floor((text.length * wide) / whole) - 1));
}

/** @param {CanvasRenderingContext2D} draw @param {any} node @param {number} x @param {number} y
 *  @param {import('./fleet_layout.js').Layout} at @param {Style} style */
function paintName(draw, node, x, y, at, { ink }) {
  const small = at.above < 18;
  draw.font = `${small ? 10 : 12}px ${FONT}`;
  draw.textBaseline = 'alphabetic';
  draw.fillStyle = node.state === 'healthy' ? ink.text : node.state === 'degraded' ? ink.warn : ink.bad;
  const most = Math.max(4, Math.floor(at.blockWide / (small ? 5.6 : 6.7)));
  const mark = node.state === 'healthy' ? '' : node.state === 'degraded' ? '▲ ' : '✕ ';
  draw.fillText(shortened(mark + node.id, most), x, y + at.above - (small ? 4 : 6));
}

/** @param {CanvasRenderingContext2D} draw @param {any} node @param {any} gpu
 *  @param {{x: number, y: number, w: number, h: number}} box @param {Style} style */
function paintGpu(draw, node, gpu, box, style) {
  const { ink } = style;
  draw.fillStyle = ink.free;
  draw.fillRect(box.x, box.y, box.w, box.h);
  const shown = condition(gpu, node.state);
  if (style.mode === 'health') {
    draw.fillStyle = { ok: gpu.free < 100 ? ink.good : mixed(ink), warn: ink.warn, bad: ink.bad, off: ink.off }[shown];
    draw.fillRect(box.x, box.y, box.w, box.h);
  } else {
    paintHolders(draw, gpu, box, style);
  }
  if (gpu.mig) paintInstances(draw, box, ink);
  if (shown === 'ok' && box.w >= 12 && !gpu.holders.length) {
    draw.strokeStyle = ink.edge;
    draw.lineWidth = 1;
    draw.strokeRect(box.x + 0.5, box.y + 0.5, box.w - 1, box.h - 1);
  }
}

/** @param {any} ink */
const mixed = (ink) => `color-mix(in srgb, ${ink.good} 38%, ${ink.free})`;

/** The colour of a holder, and of a text on it. @param {any} holder @param {any} gpu @param {Style} style */
export function colourOf(holder, gpu, { mode, colours, ink }) {
  const key = keyOf(holder, gpu, mode);
  if (key === '') return { fill: ink.other, on: ink.ground };
  const place = mode === 'job' ? hashed(key) : colours.place(key);
  return place < 0 ? { fill: ink.other, on: ink.ground } : { fill: ink.series[place], on: ink.onSeries[place] };
}

/** @param {CanvasRenderingContext2D} draw @param {any} gpu
 *  @param {{x: number, y: number, w: number, h: number}} box @param {Style} style */
function paintHolders(draw, gpu, box, style) {
  let from = 0;
  for (const holder of gpu.holders) {
    const left = box.x + Math.round((box.w * from) / 100);
    from = Math.min(100, from + holder.share);
    const right = box.x + Math.round((box.w * from) / 100);
    const { fill } = colourOf(holder, gpu, style);
    const dimmed = style.only && keyOf(holder, gpu, style.mode) !== style.only;
    draw.globalAlpha = dimmed ? 0.16 : 1;
    draw.fillStyle = fill;
    const split = right < box.x + box.w && box.w >= 10 ? 1 : 0;
    draw.fillRect(left, box.y, Math.max(1, right - left - split), box.h);
    draw.globalAlpha = 1;
  }
}

/** A device that is divided into MIG instances: notches at its sevenths. @param {CanvasRenderingContext2D} draw
 *  @param {{x: number, y: number, w: number, h: number}} box @param {any} ink */
function paintInstances(draw, box, ink) {
  draw.fillStyle = ink.ground;
  for (let i = 1; i < 7; i += 1) {
    const x = Math.round(box.x + (box.w * i) / 7);
    if (box.w >= 20) draw.fillRect(x, box.y + box.h - 4, 1, 4);
  }
  draw.fillStyle = ink.text;
  draw.fillRect(box.x, box.y + box.h - 1, box.w, 1);
}

/** @param {CanvasRenderingContext2D} draw @param {{x: number, y: number, w: number, h: number}} box
 *  @param {string} shown @param {any} ink */
function paintMark(draw, box, shown, ink) {
  const colour = { warn: ink.warn, bad: ink.bad, off: ink.off }[shown];
  const inset = box.w >= 12 ? 1 : 0.5;
  draw.strokeStyle = colour;
  draw.lineWidth = box.w >= 12 ? 2 : 1;
  draw.strokeRect(box.x + inset, box.y + inset, box.w - 2 * inset, box.h - 2 * inset);
  const reach = Math.min(box.w, box.h, 20) * 0.26;
  const x = box.w >= 40 ? box.x + box.w - 12 : box.x + box.w / 2;
  const y = box.y + box.h / 2;
  draw.lineWidth = box.w >= 24 ? 4 : box.w >= 12 ? 2.5 : 1.5;
  draw.strokeStyle = ink.ground;
  for (const stroke of [ink.ground, colour]) {
    draw.strokeStyle = stroke;
    draw.beginPath();
    if (shown === 'warn') {
      draw.moveTo(x - reach, y + reach);
      draw.lineTo(x + reach, y - reach);
    } else {
      draw.moveTo(x - reach, y - reach);
      draw.lineTo(x + reach, y + reach);
      draw.moveTo(x + reach, y - reach);
      draw.lineTo(x - reach, y + reach);
    }
    draw.stroke();
    draw.lineWidth = box.w >= 24 ? 2 : box.w >= 12 ? 1.5 : 1;
  }
}

/** The frame around the GPU that is chosen. @param {CanvasRenderingContext2D} draw
 *  @param {{node: number, gpu: number}} chosen @param {import('./fleet_layout.js').Layout} at
 *  @param {number} top @param {any} ink */
export function paintChosen(draw, chosen, at, top, ink) {
  const { x, y } = corner(at, chosen.node);
  const cell = cellOf(at, Math.max(0, chosen.gpu));
  draw.strokeStyle = ink.ring;
  draw.lineWidth = 2;
  draw.strokeRect(x + cell.x - 1, y - top + cell.y - 1, cell.w + 2, cell.h + 2);
}
