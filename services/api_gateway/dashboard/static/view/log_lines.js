// @ts-check
/** Pure: a part of a job's output as lines, each with the offset of its first byte. */

export const LINES_MAX = 50_000;
const NEWLINE = 10;
// eslint-disable-next-line no-control-regex
const ESCAPES = /\u001b\[[0-9;?]*[ -/]*[@-~]|\u001b\][^\u0007]*(?:\u0007|\u001b\\)|[\u0000-\u0008\u000b\u000c\u000e-\u001a\u001c-\u001f]/g;

/** A line as it is shown: without the terminal's control sequences, and after the last carriage return.
 *  @param {string} text */
export function plain(text) {
  const bare = text.replace(ESCAPES, '').replace(/\r+$/, '');
  const at = bare.lastIndexOf('\r');
  return at < 0 ? bare : bare.slice(at + 1);
}

/** @typedef {{at: number, text: string}} Line */

const decoder = new TextDecoder();

/** The lines of some bytes. @param {Uint8Array} bytes @param {number} offset @returns {Line[]} */
export function linesOf(bytes, offset) {
  const found = [];
  let from = 0;
  while (from < bytes.length) {
    const end = bytes.indexOf(NEWLINE, from);
    const to = end < 0 ? bytes.length : end;
    found.push({ at: offset + from, text: plain(decoder.decode(bytes.subarray(from, to))) });
    from = to + 1;
  }
  return found;
}

/** A window onto the output: the bytes from `start` to `end`. */
export class LogText {
  /** @param {number} start */
  constructor(start = 0) {
    this.start = start;
    this.end = start;
    /** @type {Line[]} */
    this.lines = [];
    this.open = new Uint8Array();
  }

  /** Add bytes at the end. A line without its end so far stays open. @param {Uint8Array} bytes */
  append(bytes) {
    if (!bytes.length) return;
    const openAt = this.end - this.open.length;
    if (this.open.length) this.lines.pop();
    const whole = new Uint8Array(this.open.length + bytes.length);
    whole.set(this.open);
    whole.set(bytes, this.open.length);
    this.end += bytes.length;
    const last = whole.lastIndexOf(NEWLINE);
    this.open = whole.slice(last + 1);
    for (const line of linesOf(whole, openAt)) this.lines.push(line);
    const over = this.lines.length - LINES_MAX;
    if (over > 0) {
      this.lines = this.lines.slice(over);
      this.start = this.lines[0].at;
    }
  }

  /** Add the bytes before the start; returns the number of new lines. A first line that began earlier
   *  is joined. @param {Uint8Array} bytes */
  prepend(bytes) {
    if (!bytes.length) return 0;
    const offset = this.start - bytes.length;
    const added = linesOf(bytes, offset);
    if (bytes[bytes.length - 1] !== NEWLINE && this.lines.length) {
      const last = /** @type {Line} */ (added.pop());
      this.lines[0] = { at: last.at, text: last.text + this.lines[0].text };
    }
    this.lines = [...added, ...this.lines].slice(0, LINES_MAX);
    this.start = offset;
    return added.length;
  }

  /** The place of the line that holds a byte. @param {number} offset */
  placeOf(offset) {
    let low = 0;
    let high = this.lines.length - 1;
    while (low < high) {
      const middle = Math.ceil((low + high) / 2);
      if (this.lines[middle].at <= offset) low = middle;
      else high = middle - 1;
    }
    return low;
  }
}

/** A line in parts, the found ones marked. @param {string} text @param {string} wanted */
export function marked(text, wanted) {
  if (!wanted) return [{ text, hit: false }];
  const parts = [];
  const low = text.toLowerCase();
  const find = wanted.toLowerCase();
  let from = 0;
  for (let at = low.indexOf(find); at >= 0 && find; at = low.indexOf(find, from)) {
    if (at > from) parts.push({ text: text.slice(from, at), hit: false });
    parts.push({ text: text.slice(at, at + find.length), hit: true });
    from = at + find.length;
  }
  if (from < text.length) parts.push({ text: text.slice(from), hit: false });
  return parts;
}
