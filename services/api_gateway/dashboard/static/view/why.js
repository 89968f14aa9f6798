// @ts-check
/** Pure: the scheduler's explanation in words. */
import { counted, sentence } from './format.js';

/** What a blocker counts, if that is not nodes; empty for what cannot be counted. */
const COUNTED = [
  [/^tenant |^held$|^waits before/, ''],
  [/^queue order$|^dependency$|^array limit$/, 'job'],
  [/^devices being freed$/, 'GPU'],
  [/^refused by its nodes$/, 'time'],
];

/** @param {{what: string, count: number}} blocker */
export function amount({ what, count }) {
  const unit = COUNTED.find(([pattern]) => /** @type {RegExp} */ (pattern).test(what))?.[1] ?? 'node';
  return unit && counted(count, String(unit));
}

/** Why a job waits, as short as a row of a table needs it: what most nodes lack, or the answer.
 *  @param {{answer: string, blockers: {what: string}[]}} explanation */
export function shortReason({ answer, blockers }) {
  return (answer.startsWith('it needs ') && blockers[0]?.what) || answer;
}

/** When a job starts: a headline, and where the scheduler has it from.
 *  @param {{in_s: number|null, basis: string}} estimate @param {(seconds: number) => string} words */
export function starts({ in_s, basis }, words) {
  if (in_s === null) return { headline: 'No estimate:', basis: `${basis.replace(/^none: /, '')}.` };
  return { headline: in_s === 0 ? 'Expected to start now.' : `Perhaps in about ${words(in_s)}.`, basis: `${sentence(basis)}.` };
}
