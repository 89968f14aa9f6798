// @ts-check
/** Pure: the scale of the time slider. */

export const STEPS = 1000;
/** The browser's thumb: its middle cannot reach the ends of the bar. */
const THUMB = 16;

/** The time at a place of the slider. @param {number} step @param {number} first @param {number} last */
export const timeAt = (step, first, last) => Math.round(first + ((last - first) * step) / STEPS);

/** The place of a time; a past one is never at the right end, which means now.
 *  @param {number} time @param {number} first @param {number} last */
export function stepOf(time, first, last) {
  const step = Math.round((STEPS * (time - first)) / Math.max(1, last - first));
  return Math.min(STEPS - 1, Math.max(0, step));
}

/** The place under the mouse. @param {number} x pixels from the left end @param {number} width */
export function stepUnder(x, width) {
  const part = (x - THUMB / 2) / Math.max(1, width - THUMB);
  return Math.round(STEPS * Math.min(1, Math.max(0, part)));
}

/** A time as a field for a date and time shows it. @param {number} time */
export function fieldOf(time) {
  const local = new Date(time - new Date(time).getTimezoneOffset() * 60_000);
  return local.toISOString().slice(0, 19);
}
