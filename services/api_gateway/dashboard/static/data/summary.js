// @ts-check
/** The counts at the top of every page: jobs by state, GPUs, nodes. From the stream, or of a past moment. */
import { computed, effect, signal } from '@preact/signals';
import { getThen } from './api.js';
import { moment } from './router.js';
import { session } from './session.js';
import { connection, noteSeq, subscribe } from './stream.js';

/** @type {import('@preact/signals').Signal<any>} */
export const summary = signal(null);
const NOT_WELL = ['DEGRADED', 'RESETTING', 'OFFLINE', 'ERROR', 'MAINTENANCE'];

/** The share of GPUs that is held, and the jobs by state, from either form of the answer. @param {any} given */
export function counts(given) {
  const gpus = given.gpus ?? {};
  const states = gpus.states ?? gpus;
  const total = gpus.total ?? given.gpus_total ?? 0;
  return {
    total,
    held: gpus.free_share === undefined ? (given.gpu_share_held ?? 0) : total * 100 - gpus.free_share,
    unhealthy: NOT_WELL.reduce((sum, name) => sum + (states[name] ?? 0), 0),
    jobs: given.jobs ?? {},
    nodes: given.nodes ?? {},
  };
}

async function read() {
  const found = await getThen('/v1/cluster');
  noteSeq(moment.value ? 0 : found.seq);
  take(found);
  return found;
}

/** @param {any} found */
function take(found) {
  summary.value = { ...summary.value, ...found };
}

const live = computed(() => connection.value.state === 'live');

/** Follow the summary while a user is signed in; what could not be read is read when the gateway answers again. */
export function begin() {
  let leave = () => {};
  /** The moment that is shown, or followed; null for none. @type {number|null} */
  let shown = null;
  effect(() => {
    const at = moment.value;
    const again = live.value;
    if (!session.value?.signed_in) return;
    if (shown === at && again) return;
    leave();
    leave = () => {};
    shown = null;
    read().then(
      () => {
        if (moment.value !== at || shown === at) return;
        shown = at;
        if (!at) leave = subscribe('summary', { hear: (event, data) => event === 'summary' && take(data), poll: read });
      },
      () => {},
    );
  });
}
