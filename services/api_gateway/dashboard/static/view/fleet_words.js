// @ts-check
/** Pure: what the fleet map shows of a GPU: its condition, its holders, their colours, in words. */
import { counted, gpus } from './format.js';

export const MODES = ['tenant', 'job', 'health', 'model'];

/** The condition of a GPU: ok, warn (degraded or kept from new work), bad, or off. @param {any} gpu @param {string} nodeState */
export function condition(gpu, nodeState) {
  if (nodeState === 'unreachable') return 'off';
  if (gpu.state === 'ERROR' || gpu.health === 'resetting') return 'bad';
  if (gpu.health === 'offline') return 'off';
  if (gpu.service !== 'online' || gpu.health === 'degraded' || gpu.state === 'MAINTENANCE') return 'warn';
  return 'ok';
}

/** The name that gives a holder its colour; the empty name is a user whom the viewer may not see.
 *  @param {any} holder @param {any} gpu @param {string} mode */
export function keyOf(holder, gpu, mode) {
  if (mode === 'model') return gpu.model;
  if (holder.tenant === null) return '';
  return mode === 'job' ? holder.job : holder.tenant;
}

/** @param {any} holder */
export function holderName(holder) {
  if (holder.tenant === null) return 'another tenant';
  return holder.name || holder.job;
}

/** One GPU in a sentence, for the label under the map and for screen readers. @param {any} node @param {any} gpu */
export function sentence(node, gpu) {
  const shown = condition(gpu, node.state);
  const why = shown === 'ok' ? '' : `, ${conditionWord(gpu, node.state)}`;
  const held = gpu.holders.map((/** @type {any} */ each) => `${holderName(each)} ${each.share}%`).join(', ');
  return `${node.id}, GPU ${gpu.index}, ${gpu.model}${why}: ${held || 'free'}`;
}

/** @param {any} gpu @param {string} nodeState */
export function conditionWord(gpu, nodeState) {
  if (nodeState === 'unreachable') return 'node unreachable';
  if (gpu.state === 'ERROR') return 'quarantined';
  if (gpu.health !== 'healthy') return gpu.health;
  if (gpu.service !== 'online') return gpu.service;
  return gpu.state === 'MAINTENANCE' ? 'draining' : 'healthy';
}

/** What one node adds to the legend. @typedef {{held: [string, number, string][], totals: any}} Part */

/** A node's row is replaced when it changes, so its part is counted once. @type {Record<string, WeakMap<any, Part>>} */
const partsOf = {};

/** @param {any} node @param {string} mode @returns {Part} */
function partOf(node, mode) {
  const known = (partsOf[mode] ??= new WeakMap());
  const before = known.get(node);
  if (before) return before;
  const totals = { free: 0, total: 0, ok: 0, warn: 0, bad: 0, off: 0 };
  /** @type {Map<string, [string, number, string]>} */
  const held = new Map();
  for (const gpu of node.gpus) {
    totals.total += 1;
    const shown = condition(gpu, node.state);
    totals[shown] += 1;
    if (shown === 'ok') totals.free += gpu.free;
    if (mode === 'health') continue;
    for (const holder of gpu.holders) {
      const key = keyOf(holder, gpu, mode);
      const name = mode === 'job' ? holderName(holder) : key;
      held.set(key, [key, (held.get(key)?.[1] ?? 0) + holder.share, name]);
    }
  }
  const part = { held: [...held.values()], totals };
  known.set(node, part);
  return part;
}

/** The rows of the legend: each key with its hundredths of GPUs, most first.
 *  @param {any[]} nodes @param {string} mode */
export function legend(nodes, mode) {
  /** @type {Map<string, number>} */
  const held = new Map();
  /** @type {Map<string, string>} */
  const names = new Map();
  const totals = { free: 0, total: 0, ok: 0, warn: 0, bad: 0, off: 0 };
  for (const node of nodes) {
    const part = partOf(node, mode);
    for (const name of /** @type {(keyof typeof totals)[]} */ (Object.keys(totals))) totals[name] += part.totals[name];
    for (const [key, share, name] of part.held) {
      held.set(key, (held.get(key) ?? 0) + share);
      names.set(key, name);
    }
  }
  const rows = [...held].map(([key, share]) => ({ key, share, name: names.get(key) ?? key })).sort((a, b) => b.share - a.share || (a.key < b.key ? -1 : 1));
  return { rows, totals };
}

/** The whole map in a sentence. @param {any[]} nodes @param {any} totals */
export function summary(nodes, totals) {
  const sick = totals.warn + totals.bad + totals.off;
  return `${counted(nodes.length, 'node')}, ${counted(totals.total, 'GPU')}, ${gpus(totals.free)} free, ${sick} not healthy`;
}

/** The next GPU after a chosen one whose node, UUID, job or user has this text in its name; null without one.
 *  @param {any[]} nodes @param {string} text @param {{node: number, gpu: number}|null} after */
export function foundAt(nodes, text, after) {
  const wanted = text.trim().toLowerCase();
  if (!wanted || !nodes.length) return null;
  const has = (/** @type {string|undefined} */ name) => Boolean(name?.toLowerCase().includes(wanted));
  const start = after ? after.node : -1;
  for (let i = 1; i <= nodes.length; i += 1) {
    const node = (start + i) % nodes.length;
    const { id, gpus } = nodes[node];
    if (has(id)) return { node, gpu: 0 };
    const gpu = gpus.findIndex((/** @type {any} */ each) => has(each.uuid) || each.holders.some((/** @type {any} */ holder) => has(holder.name) || has(holder.job) || has(holder.user)));
    if (gpu >= 0) return { node, gpu };
  }
  return null;
}
