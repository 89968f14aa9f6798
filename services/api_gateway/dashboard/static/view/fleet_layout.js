// @ts-check
/** Pure: where each node and each of its GPUs is on the fleet map.
 *
 * A node is a block: its name, if there is room, and its GPUs in rows of eight. Blocks fill the
 * width row by row. The cells are as large as the whole fleet allows, within bounds. */

export const CELL_MIN = 7;
export const CELL_MAX = 92;
const LABELLED_FROM = 15;
const GPUS_IN_ROW = 8;
const ROOM = 2;
const HIGH_MAX = 46;

/** @typedef {{cell: number, high: number, gap: number, above: number, columns: number, lines: number,
 *   blockWide: number, blockHigh: number, perRow: number, rows: number, tall: number, spare: number}} Layout */

/** The layout for cells of one size. @param {number} nodes @param {number} gpus @param {number} width
 *  @param {number} cell @returns {Layout} */
export function layoutOf(nodes, gpus, width, cell) {
  const gap = cell >= 24 ? 4 : cell >= 12 ? 2 : 1;
  const columns = Math.max(1, Math.min(gpus, GPUS_IN_ROW));
  const lines = Math.max(1, Math.ceil(gpus / GPUS_IN_ROW));
  const high = Math.round(cell >= 48 ? Math.min(cell * 0.58, HIGH_MAX) : cell);
  const above = cell >= LABELLED_FROM ? (cell >= 24 ? 18 : 14) : 0;
  const blockHigh = above + lines * (high + gap) - gap;
  const spare = cell >= 24 ? 16 : cell >= 12 ? 10 : 6;
  const least = columns * (cell + gap) - gap;
  const perRow = Math.max(1, Math.min(nodes, Math.floor((width - ROOM + spare) / (least + spare))));
  const wide = stretched(cell, gap, columns, (width - ROOM + spare) / perRow - spare);
  const blockWide = columns * (wide + gap) - gap;
  const rows = Math.ceil(nodes / perRow);
  const tall = rows * (blockHigh + spare) + ROOM;
  return { cell: wide, high, gap, above, columns, lines, blockWide, blockHigh, perRow, rows, tall, spare };
}

/** The width of cells that fill a block of this width, if they may be wider. @param {number} cell @param {number} gap
 *  @param {number} columns @param {number} block */
function stretched(cell, gap, columns, block) {
  const wide = Math.floor((block + gap) / columns - gap);
  return Math.max(cell, Math.min(wide, cell >= LABELLED_FROM ? CELL_MAX : cell + 2));
}

/** The layout with the largest cells that fit into the height, or the smallest ones. `zoom` adds
 *  steps to that. @param {number} nodes @param {number} gpus @param {number} width @param {number} height
 *  @param {number} zoom @returns {Layout} */
export function fitted(nodes, gpus, width, height, zoom = 0) {
  const widest = Math.max(CELL_MIN, Math.floor((width - ROOM) / Math.min(Math.max(gpus, 1), GPUS_IN_ROW)) - 4);
  const top = Math.min(CELL_MAX, widest);
  let best = CELL_MIN;
  for (let cell = top; cell >= CELL_MIN; cell -= 1) {
    if (layoutOf(nodes, gpus, width, cell).tall <= height) {
      best = cell;
      break;
    }
  }
  const cell = Math.max(CELL_MIN, Math.min(top, Math.round(best * 1.35 ** zoom)));
  return heightened(layoutOf(nodes, gpus, width, cell), height);
}

/** The layout with cells that use what is left of the height. @param {Layout} at @param {number} height */
function heightened(at, height) {
  const more = Math.floor((height - at.tall) / Math.max(1, at.rows * at.lines));
  const high = Math.max(at.high, Math.min(at.high + more, at.cell >= 24 ? HIGH_MAX : at.high));
  const blockHigh = at.blockHigh + (high - at.high) * at.lines;
  return { ...at, high, blockHigh, tall: at.rows * (blockHigh + at.spare) + ROOM };
}

/** The left upper corner of a node's block. @param {Layout} at @param {number} node */
export function corner(at, node) {
  return {
    x: (node % at.perRow) * (at.blockWide + at.spare) + ROOM / 2,
    y: Math.floor(node / at.perRow) * (at.blockHigh + at.spare) + ROOM / 2,
  };
}

/** The rectangle of a GPU, relative to its block. @param {Layout} at @param {number} gpu */
export function cellOf(at, gpu) {
  return {
    x: (gpu % at.columns) * (at.cell + at.gap),
    y: at.above + Math.floor(gpu / at.columns) * (at.high + at.gap),
    w: at.cell,
    h: at.high,
  };
}

/** The node and GPU at a point; null between blocks. `gpu` is -1 on a node's name.
 *  @param {Layout} at @param {number} x @param {number} y @param {number} nodes */
export function hit(at, x, y, nodes) {
  const column = Math.floor((x - ROOM / 2) / (at.blockWide + at.spare));
  const row = Math.floor((y - ROOM / 2) / (at.blockHigh + at.spare));
  const node = row * at.perRow + column;
  if (column < 0 || column >= at.perRow || row < 0 || node >= nodes) return null;
  const { x: left, y: top } = corner(at, node);
  const inX = x - left;
  const inY = y - top;
  if (inX >= at.blockWide || inY >= at.blockHigh) return null;
  if (inY < at.above) return { node, gpu: -1 };
  const gpu = Math.floor((inY - at.above) / (at.high + at.gap)) * at.columns + Math.floor(inX / (at.cell + at.gap));
  return { node, gpu };
}

/** The rows of blocks that a window shows. @param {Layout} at @param {number} top @param {number} height */
export function shownRows(at, top, height) {
  const each = at.blockHigh + at.spare;
  return {
    first: Math.max(0, Math.floor((top - ROOM) / each)),
    last: Math.min(at.rows - 1, Math.floor((top + height) / each)),
  };
}

/** The place after a key; places are (node, gpu). @param {Layout} at @param {{node: number, gpu: number}} from
 *  @param {string} key @param {number[]} sizes the number of GPUs of each node */
export function moved(at, from, key, sizes) {
  const last = sizes.length - 1;
  const inside = (/** @type {number} */ node, /** @type {number} */ gpu) => ({
    node: Math.max(0, Math.min(last, node)),
    gpu: Math.max(0, Math.min((sizes[Math.max(0, Math.min(last, node))] || 1) - 1, gpu)),
  });
  const { node, gpu } = from;
  switch (key) {
    case 'ArrowRight':
      return gpu + 1 < sizes[node] ? { node, gpu: gpu + 1 } : node < last ? { node: node + 1, gpu: 0 } : from;
    case 'ArrowLeft':
      return gpu > 0 ? { node, gpu: gpu - 1 } : node > 0 ? inside(node - 1, sizes[node - 1] - 1) : from;
    case 'ArrowDown':
      if (gpu + at.columns < sizes[node]) return { node, gpu: gpu + at.columns };
      return node + at.perRow <= last ? inside(node + at.perRow, gpu % at.columns) : from;
    case 'ArrowUp':
      if (gpu >= at.columns) return { node, gpu: gpu - at.columns };
      return node - at.perRow >= 0 ? inside(node - at.perRow, gpu) : from;
    case 'Home':
      return { node: 0, gpu: 0 };
    case 'End':
      return inside(last, sizes[last] - 1);
    default:
      return null;
  }
}
