// @ts-check
/** The one stream of changes: a WebSocket with subscriptions, each of which continues after the last
 * commit that it has seen. When the server is away the page says since when, and after the next
 * connection every subscription gets what it has missed. Where WebSockets are refused, each
 * subscription is read again every few seconds instead. */
import { signal } from '@preact/signals';
import { listeners } from './api.js';

export const SILENT_MS = 4000;
const PING_MS = 1500;
const RETRY_MS = [250, 500, 1000, 2000, 4000];
export const POLL_MS = 5000;
/** A subscription that a busy gateway refused is asked for again after this time, then twice as long. */
const AGAIN_MS = 2000;
const AGAIN_MOST_MS = 30_000;
/** So many refusals before the first message mean that something on the way allows no WebSocket. */
const REFUSALS = 3;

/** @typedef {{topic: string, filter: Record<string, any>, after: number|null,
 *   hear: (event: string, data: any, seq: number) => void, poll?: () => Promise<void>}} Subscription */

/** `state`: connecting, live, polling or stale. `since`: when the server was last heard. */
export const connection = signal({ state: 'connecting', since: Date.now() });
/** The last commit that any answer or event named. */
export const lastSeq = signal(0);
/** The same for the eye: it changes twice a second at most, because each change is drawn. */
export const shownSeq = signal(0);
const SHOWN_MS = 500;

/** @type {Map<string, Subscription>} */
const subscriptions = new Map();
/** @type {WebSocket|null} */
let socket = null;
let heardAt = Date.now();
let everHeard = false;
let refusals = 0;
let tries = 0;
let number = 0;
/** @type {ReturnType<typeof setTimeout>|undefined} */
let retrying;
let started = false;

/** Start; called once a user has signed in. */
export function connect() {
  if (started) return;
  started = true;
  open();
  setInterval(beat, PING_MS);
  document.addEventListener('visibilitychange', () => {
    if (!document.hidden) beat();
  });
  addEventListener('online', reopen);
}

/**
 * Hear of changes. Returns the function that ends it.
 * @param {string} topic
 * @param {{filter?: Record<string, any>, after?: number|null, hear: Subscription['hear'], poll?: () => Promise<void>}} options
 */
export function subscribe(topic, { filter = {}, after = null, hear, poll }) {
  number += 1;
  const id = `${topic}-${number}`;
  const subscription = { topic, filter, after, hear, poll };
  subscriptions.set(id, subscription);
  if (socket?.readyState === WebSocket.OPEN) ask(id, subscription);
  return () => {
    subscriptions.delete(id);
    refused.delete(id);
    if (socket?.readyState === WebSocket.OPEN) tell({ op: 'unsubscribe', id });
  };
}

/** @param {any} frame */
const tell = (frame) => socket?.send(JSON.stringify(frame));

/** @param {string} id @param {Subscription} each */
const ask = (id, each) =>
  tell({ op: 'subscribe', id, topic: each.topic, filter: each.filter, after: each.after });

function open() {
  clearTimeout(retrying);
  const made = new WebSocket(`${location.protocol === 'https:' ? 'wss' : 'ws'}://${location.host}/v1/ws`);
  let spoke = false;
  socket = made;
  made.onopen = () => {
    for (const [id, each] of subscriptions) ask(id, each);
    tell({ op: 'ping', n: 0 });
  };
  made.onmessage = (message) => {
    spoke = true;
    everHeard = true;
    refusals = 0;
    tries = 0;
    take(JSON.parse(message.data));
    heard(refused.size ? 'stale' : 'live');
  };
  made.onclose = () => {
    if (socket !== made) return;
    socket = null;
    if (!spoke && !everHeard) refusals += 1;
    if (!spoke && everHeard) listeners.lost();
    if (connection.value.state !== 'polling') show('stale');
    retrying = setTimeout(open, RETRY_MS[Math.min(tries, RETRY_MS.length - 1)] * (0.75 + Math.random() / 2));
    tries += 1;
  };
}

function reopen() {
  if (socket && socket.readyState === WebSocket.OPEN) return;
  tries = 0;
  open();
}

/** How often the gateway has refused each subscription that it should have taken. @type {Map<string, number>} */
const refused = new Map();

/**
 * Subscribe again after a refusal. What the gateway has no more is read anew; a gateway that is too
 * busy is asked later. Other refusals (no such job, not allowed) stay.
 * @param {string} id @param {Subscription} each @param {any} problem
 */
function askAgain(id, each, problem) {
  const isGone = problem?.status === 410 || (problem?.status === 422 && each.after !== null);
  if (!isGone && problem?.status !== 429 && problem?.status !== 503) return;
  if (isGone) each.after = null;
  const times = refused.get(id) ?? 0;
  refused.set(id, times + 1);
  setTimeout(() => {
    if (subscriptions.get(id) !== each || socket?.readyState !== WebSocket.OPEN) return;
    ask(id, each);
    if (isGone) each.poll?.().catch(() => {});
  }, isGone && !times ? 0 : Math.min(AGAIN_MOST_MS, AGAIN_MS * 2 ** times));
}

/** @param {any} frame */
function take(frame) {
  if (frame.event === 'pong') return;
  const subscription = subscriptions.get(frame.id);
  if (typeof frame.seq === 'number') noteSeq(frame.seq);
  if (!subscription) return;
  if (frame.event === 'error') {
    subscription.hear(frame.event, frame.data, frame.seq);
    askAgain(frame.id, subscription, frame.data);
    return;
  }
  refused.delete(frame.id);
  subscription.hear(frame.event, frame.data, frame.seq);
  if (typeof frame.seq === 'number' && frame.seq > (subscription.after ?? 0)) subscription.after = frame.seq;
}

let showing = 0;
let shownAt = 0;

/** @param {number} seq */
export function noteSeq(seq) {
  if (seq <= lastSeq.value) return;
  lastSeq.value = seq;
  showing ||= setTimeout(() => {
    showing = 0;
    shownAt = Date.now();
    shownSeq.value = lastSeq.value;
  }, Math.max(0, shownAt + SHOWN_MS - Date.now()));
}

/** @param {string} state */
function heard(state) {
  heardAt = Date.now();
  if (connection.value.state !== state) connection.value = { state, since: heardAt };
}

/** @param {string} state */
function show(state) {
  if (connection.value.state !== state) connection.value = { state, since: heardAt };
}

let polledAt = 0;
let beatAt = Date.now();
/** No silence is judged before: after timers slept (a hidden tab), a ping may first be answered. */
let judgeFrom = 0;

function beat() {
  const now = Date.now();
  if (now - beatAt > 2 * PING_MS) judgeFrom = now + PING_MS;
  beatAt = now;
  if (socket?.readyState === WebSocket.OPEN) {
    tell({ op: 'ping', n: 0 });
    if (now >= judgeFrom && now - heardAt > SILENT_MS) {
      show('stale');
      socket.close();
    }
  } else if (refusals >= REFUSALS && now - polledAt >= POLL_MS && !document.hidden) {
    polledAt = now;
    poll();
  } else if (connection.value.state !== 'polling' && now - heardAt > SILENT_MS) {
    show('stale');
  }
}

async function poll() {
  try {
    for (const each of [...subscriptions.values()]) if (each.poll) await each.poll();
    heard('polling');
  } catch {
    show('stale');
  }
}
