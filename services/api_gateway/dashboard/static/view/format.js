// @ts-check
/** Pure: numbers, times and names as the pages show them. */

const MINUTE_S = 60;
const HOUR_S = 3600;
const DAY_S = 86400;
const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
const MONTHS = ['Jan', 'Feb', 'Mar', 'Apr', 'May', 'Jun', 'Jul', 'Aug', 'Sep', 'Oct', 'Nov', 'Dec'];

const two = (/** @type {number} */ n) => String(n).padStart(2, '0');

/** Milliseconds of an RFC 3339 text; null without one. @param {string|null|undefined} text */
export function millis(text) {
  const at = text ? Date.parse(text) : NaN;
  return Number.isNaN(at) ? null : at;
}

/** A time of day, with its date if that is not today. @param {number|null} at @param {number} now */
export function clock(at, now) {
  if (at === null) return '–';
  const date = new Date(at);
  const today = new Date(now);
  const time = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  if (date.toDateString() === today.toDateString()) return time;
  const day = `${MONTHS[date.getMonth()]} ${date.getDate()}`;
  return date.getFullYear() === today.getFullYear()
    ? `${day} ${time.slice(0, 5)}`
    : `${day} ${date.getFullYear()} ${time.slice(0, 5)}`;
}

/** A length of time in its two largest units. @param {number|null} seconds */
export function duration(seconds) {
  if (seconds === null || !Number.isFinite(seconds)) return '–';
  const s = Math.max(0, Math.round(seconds));
  if (s < MINUTE_S) return `${s}s`;
  if (s < HOUR_S) return `${Math.floor(s / MINUTE_S)}m ${two(s % MINUTE_S)}s`;
  if (s < DAY_S) return `${Math.floor(s / HOUR_S)}h ${two(Math.floor((s % HOUR_S) / MINUTE_S))}m`;
  return `${Math.floor(s / DAY_S)}d ${two(Math.floor((s % DAY_S) / HOUR_S))}h`;
}

/** A short length of time, for example between two facts. @param {number} ms */
export function gap(ms) {
  if (ms < 1) return `${Math.max(0, ms).toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  return ms < 10_000 ? `${(ms / 1000).toFixed(1)} s` : duration(ms / 1000);
}

/** @param {number|null} at @param {number} now */
export function ago(at, now) {
  return at === null || !Number.isFinite(now) ? '–' : `${duration((now - at) / 1000)} ago`;
}

/** @param {number} value */
export function bytes(value) {
  let rest = value;
  let unit = 0;
  while (rest >= 1024 && unit < UNITS.length - 1) {
    rest /= 1024;
    unit += 1;
  }
  return `${rest >= 100 || unit === 0 ? Math.round(rest) : rest.toFixed(1)} ${UNITS[unit]}`;
}

/** A number with its thousands apart. @param {number} value */
export function count(value) {
  return String(Math.round(value) || 0).replace(/\B(?=(\d{3})+(?!\d))/g, '\u202f');
}

/** A number of GPUs from hundredths: 200 is 2, 25 is 0.25. @param {number} hundredths */
export function gpus(hundredths) {
  const whole = Math.trunc(hundredths / 100);
  const rest = String(Math.round(Math.abs(hundredths % 100))).padStart(2, '0').replace(/0+$/, '');
  return rest ? `${count(whole)}.${rest}` : count(whole);
}

/** A number with at most so many decimals. @param {number} value @param {number} decimals */
export function decimal(value, decimals = 1) {
  const [whole, rest] = String(Number(value.toFixed(decimals))).split('.');
  return rest ? `${count(Number(whole))}.${rest}` : count(Number(whole));
}

/** @param {number} part @param {number} whole */
export function percent(part, whole) {
  return whole > 0 ? Math.round((100 * part) / whole) : 0;
}

/** A noun with its number: "1 job", "3 jobs". @param {number} n @param {string} noun */
export function counted(n, noun) {
  return `${count(n)} ${noun}${n === 1 ? '' : 's'}`;
}

/** A text with a capital at its beginning. @param {string} text */
export const sentence = (text) => text.slice(0, 1).toUpperCase() + text.slice(1);

/** A text of at most so many characters; the middle is left out. @param {string} text @param {number} most */
export function shortened(text, most) {
  if (text.length <= most) return text;
  const head = Math.ceil((most - 1) / 2);
  return `${text.slice(0, head)}…${text.slice(text.length - (most - 1 - head))}`;
}
