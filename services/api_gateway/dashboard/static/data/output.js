// @ts-check
/** A job's output by ranges of bytes, and its search in the gateway. */
import { get, segment, send } from './api.js';

export const CHUNK = 64 << 10;

/** @typedef {{job: string, stream: string, rank: number, attempt: number}} Part */

/** Read at most `most` bytes. Without `offset` the last ones. @param {Part} part
 *  @param {{offset?: number, most?: number, signal: AbortSignal}} range */
export async function readRange({ job, stream, rank, attempt }, { offset, most = CHUNK, signal }) {
  const query = { stream, rank, attempt, ...(offset === undefined ? { tail_bytes: CHUNK } : { offset }) };
  const answer = await send('GET', `/v1/jobs/${segment(job)}/output`, { query, signal });
  const start = Number(answer.headers.get('x-muster-offset') ?? offset ?? 0);
  const source = answer.headers.get('x-muster-output') ?? '';
  const reader = /** @type {ReadableStream<Uint8Array>} */ (answer.body).getReader();
  const pieces = [];
  let length = 0;
  let ended = false;
  while (length < most) {
    const { done, value } = await reader.read();
    if (done) {
      ended = true;
      break;
    }
    pieces.push(value);
    length += value.length;
  }
  if (!ended) reader.cancel().catch(() => {});
  const bytes = new Uint8Array(Math.min(length, most));
  let at = 0;
  for (const piece of pieces) {
    bytes.set(piece.subarray(0, Math.max(0, bytes.length - at)), at);
    at += Math.min(piece.length, bytes.length - at);
  }
  return { start, bytes, ended: ended && length <= most, source };
}

/** @param {Part} part @param {string} text @param {number} offset @param {AbortSignal} signal */
export function search({ job, stream, rank, attempt }, text, offset, signal) {
  return get(`/v1/jobs/${segment(job)}/output/search`, { find: text, stream, rank, attempt, offset }, signal);
}
