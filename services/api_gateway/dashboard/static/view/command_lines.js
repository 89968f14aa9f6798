// @ts-check
/** Pure: the line of the command `muster` that does what an action of a page does. */

import { LIVE } from './jobs.js';

/** A word as a shell reads it. @param {string} word */
export function quoted(word) {
  return /^[\w@%+=:,./{}-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}

/** @param {string[]} words */
const line = (...words) => ['muster', ...words.map(quoted)].join(' ');

/** @param {string[]} args */
export const cancel = (...args) => line('cancel', ...args);
export const kill = (/** @type {string} */ job) => line('kill', job);
export const hold = (/** @type {string} */ job) => line('hold', job);
export const release = (/** @type {string} */ job) => line('release', job);
export const requeue = (/** @type {string} */ job) => line('requeue', job);
export const why = (/** @type {string} */ job, /** @type {number} */ at) =>
  at ? line('why', job, '--at', String(at)) : line('why', job);
export const describe = (/** @type {string} */ job) => line('describe', job);
export const diagnose = (/** @type {string} */ job) => line('diagnose', job);
export const drain = (/** @type {string} */ node) => line('drain', node);
export const online = (/** @type {string} */ node) => line('online', node);
export const offline = (/** @type {string} */ node, /** @type {boolean} */ force) =>
  force ? line('offline', '--force', node) : line('offline', node);
export const drainGpu = (/** @type {string} */ uuid) => line('drain', '--gpu-id', uuid);
export const onlineGpu = (/** @type {string} */ uuid) => line('online', '--gpu-id', uuid);
export const dead = (/** @type {string} */ node) => line('node', 'dead', node);
export const undeploy = (/** @type {string} */ model) => line('undeploy', model);
export const redeploy = (/** @type {string} */ model) => line('redeploy', model);
export const scale = (/** @type {string} */ model, /** @type {number} */ n) =>
  line('scale', model, String(n));

/** @param {string} job @param {{stream?: string, rank?: number, attempt?: number, find?: string}} part */
export function logs(job, { stream = 'stdout', rank = 0, attempt = 0, find = '' }) {
  const words = ['logs', '--stream', stream];
  if (rank) words.push('--rank', String(rank));
  if (attempt) words.push('--attempt', String(attempt));
  const found = find ? ` | grep -iF ${quoted(find)}` : '';
  return line(...words, job) + found;
}

/** @param {Record<string, any>} filter `all`: also ended jobs */
export function jobs(filter) {
  const words = ['ps'];
  for (const state of filter.state ? filter.state.split(',') : []) words.push('--state', state);
  if (filter.all || (!filter.user && !filter.state)) words.push('--all');
  if (!filter.all && !filter.user && !filter.state) words.push('--state', LIVE.join(','));
  if (filter.user) words.push('--user', filter.user);
  else if (filter.state) words.push('--all');
  if (filter.kind) words.push('--kind', filter.kind);
  return line(...words);
}

/** The fields that runs and replicas share. @param {Record<string, any>} body @param {string[]} words */
function resources(body, words) {
  if (body.gpus !== undefined) words.push('--gpus', String(body.gpus));
  if (body.fraction !== undefined) words.push('--fraction', String(body.fraction));
  if (body.image) words.push('--image', body.image);
  for (const [name, value] of Object.entries(body.env ?? {})) words.push('--env', `${name}=${value}`);
  for (const [variable, secret] of Object.entries(body.secrets ?? {})) words.push('--secret', variable === secret ? secret : `${secret}=${variable}`);
}

/** @param {Record<string, any>} body */
export function submit(body) {
  const words = ['submit'];
  if (body.name) words.push('--name', body.name);
  if (body.nodes > 1) words.push('--nodes', String(body.nodes));
  resources(body, words);
  if (body.queue) words.push('--queue', body.queue);
  if (body.priority !== undefined) words.push('--priority', String(body.priority));
  if (body.time_limit) words.push('--time', body.time_limit);
  if (body.estimate) words.push('--estimate', body.estimate);
  return line(...words, '--', ...(body.command ?? []));
}

/** @param {Record<string, any>} body @param {string} verb deploy, or redeploy for a model that is deployed */
export function deploy(body, verb = 'deploy') {
  const words = [verb, body.name ?? ''];
  const { scaling } = body;
  if (scaling) words.push('--replicas', `${scaling.replicas_min}..${scaling.replicas_max}`);
  else if (body.replicas !== undefined) words.push('--replicas', String(body.replicas));
  if (scaling?.first_token_ms) words.push('--target-ttft', `${scaling.first_token_ms}ms`);
  resources(body, words);
  return line(...words, '--', ...(body.command ?? []));
}

/** The words of a command as a shell would split them; quotes keep words together. @param {string} text */
export function words(text) {
  const found = [];
  for (const [, double, single, plain] of text.matchAll(/"((?:[^"\\]|\\.)*)"|'([^']*)'|(\S+)/g)) {
    found.push(double !== undefined ? double.replace(/\\(.)/g, '$1') : (single ?? plain));
  }
  return found;
}
