// @ts-check
/** Why jobs wait, for the rows of the queue that are in the window: asked of the scheduler one after
 * the other, with pauses as long as its answers take, so that a long queue costs it little. */
import { signal } from '@preact/signals';
import { get, segment } from './api.js';
import { shortReason } from '../view/why.js';

const FRESH_MS = 30_000;
const PAUSE_MS = 200;
/** A slow scheduler is left alone for so many times as long as it took. */
const PAUSES = 4;
const WAITING_MAX = 50;
const KEPT_MAX = 500;

/** @type {import('@preact/signals').Signal<ReadonlyMap<string, {text: string, at: number}>>} */
export const reasons = signal(new Map());
/** @type {Set<string>} */
const wanted = new Set();
let isAsking = false;

/** Want a job's reason, while its row is shown. Returns the function that ends it. @param {string} id */
export function want(id) {
  const known = reasons.value.get(id);
  if (!(known && Date.now() - known.at < FRESH_MS) && wanted.size < WAITING_MAX) wanted.add(id);
  if (!isAsking) ask();
  return () => {
    wanted.delete(id);
  };
}

async function ask() {
  isAsking = true;
  for (const id of wanted) {
    wanted.delete(id);
    const from = performance.now();
    const found = await get(`/v1/jobs/${segment(id)}/why`).catch(() => null);
    const kept = [...reasons.value].slice(-KEPT_MAX).filter(([other]) => other !== id);
    reasons.value = new Map([...kept, [id, { text: found ? shortReason(found) : '', at: Date.now() }]]);
    const pause = Math.max(PAUSE_MS, PAUSES * (performance.now() - from));
    await new Promise((done) => setTimeout(done, pause));
  }
  isAsking = false;
}
