// @ts-check
/** Requests to the gateway, as every client sends them. The browser adds the session's cookie. */
import { moment } from './router.js';

const SLOW_MS = 30_000;

/** A request that failed, in the gateway's own words. */
export class ApiError extends Error {
  /** @param {number} status @param {string} detail */
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

/** Called when a request is answered 401, after each request, and when the stream was refused. @type {{refused: () => void, heard: (ok: boolean) => void, lost: () => void}} */
export const listeners = { refused: () => {}, heard: () => {}, lost: () => {} };

/** @param {string} path @param {Record<string, any>} query */
function withQuery(path, query) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== '' && value !== false);
  if (!given.length) return path;
  return `${path}?${new URLSearchParams(given.map(([name, value]) => [name, String(value)]))}`;
}

/**
 * @param {string} method @param {string} path
 * @param {{query?: Record<string, any>, body?: any, signal?: AbortSignal, headers?: Record<string, string>}} options
 * @returns {Promise<Response>}
 */
export async function send(method, path, { query = {}, body, signal, headers = {} } = {}) {
  let answer;
  try {
    answer = await fetch(withQuery(path, query), {
      method,
      credentials: 'same-origin',
      headers: { ...(body === undefined ? {} : { 'content-type': 'application/json' }), ...headers },
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
    });
  } catch (error) {
    if (error instanceof DOMException && error.name === 'AbortError') throw error;
    listeners.heard(false);
    throw new ApiError(0, 'The gateway does not answer. The page tries again by itself.');
  }
  listeners.heard(true);
  if (answer.ok) return answer;
  if (answer.status === 401) listeners.refused();
  throw new ApiError(answer.status, await detailOf(answer));
}

/** @param {Response} answer */
async function detailOf(answer) {
  try {
    const problem = await answer.json();
    return String(problem.detail ?? problem.error?.message ?? problem.title ?? answer.statusText);
  } catch {
    return `The gateway answered ${answer.status} ${answer.statusText}.`;
  }
}

/** @param {string} path @param {Record<string, any>} query @param {AbortSignal} [signal] */
export async function get(path, query = {}, signal) {
  const bound = signal ?? AbortSignal.timeout(SLOW_MS);
  return (await send('GET', path, { query, signal: bound })).json();
}

/** Read a list or a thing as of the moment that the page shows. @param {string} path
 *  @param {Record<string, any>} query @param {AbortSignal} [signal] */
export function getThen(path, query = {}, signal) {
  return get(path, moment.value ? { ...query, at: moment.value } : query, signal);
}

/** Ask for a change. @param {string} method @param {string} path @param {any} [body] */
export async function change(method, path, body) {
  const answer = await send(method, path, { body, signal: AbortSignal.timeout(SLOW_MS) });
  return answer.status === 204 ? null : answer.json();
}

/** @param {string} part */
export const segment = (part) => encodeURIComponent(part);
