// @ts-check
/** The time slider: every page at any past moment of the log. Its right end is always now. While a
 * moment is being chosen the scale stands still, so that a place on it keeps its meaning. */
import { useEffect, useRef, useState } from 'preact/hooks';
import { now } from '../data/clock.js';
import { get } from '../data/api.js';
import { changeQuery, href, moment, place } from '../data/router.js';
import { momentAt } from '../data/shown.js';
import { shownSeq } from '../data/stream.js';
import { html } from '../html.js';
import { ago, clock, count, millis } from '../view/format.js';
import { fieldOf, stepOf, STEPS, stepUnder, timeAt } from '../view/moments.js';
import { tell } from './dialog.js';
import { Icon } from './icons.js';

const SETTLED_MS = 180;
/** The scale moves on after this time without a choice. */
const STILL_MS = 1500;
const GONE = 410;

/** @typedef {{seq: number, at: string}} Commit */
/** @typedef {{first: Commit, last: Commit}} Bounds */

/** Show the last commit up to a time. What is before the oldest moment shows the oldest.
 *  @param {number} time @param {Bounds} bounds @param {() => boolean} isLatest */
async function showAt(time, bounds, isLatest) {
  try {
    const isOldest = time <= (millis(bounds.first.at) ?? 0);
    const seq = isOldest ? bounds.first.seq : (await get('/v1/moments', { at: new Date(time).toISOString() })).moment?.seq;
    if (isLatest()) changeQuery({ at: seq });
    return seq;
  } catch (error) {
    if (!isLatest()) return 0;
    const known = /** @type {any} */ (error).status === GONE ? await get('/v1/moments').catch(() => null) : null;
    if (known) changeQuery({ at: known.first.seq });
    else tell(/** @type {Error} */ (error).message);
    return known?.first.seq ?? 0;
  }
}

/** The last commit, apart from the rest of the slider, which does not change with it. */
function LastCommit() {
  return html`<span class="muted">· commit ${count(shownSeq.value)}</span>`;
}

export function Moments() {
  const [bounds, setBounds] = useState(/** @type {Bounds|null} */ (null));
  /** The user's choice, until the page has left its moment. */
  const [choice, setChoice] = useState(/** @type {{time: number, step: number, seq: number}|null} */ (null));
  /** The right end while it stands still. */
  const [still, setStill] = useState(/** @type {number|null} */ (null));
  const waiting = useRef(/** @type {any} */ (undefined));
  const moving = useRef(/** @type {any} */ (undefined));
  /** Counts choices, so that a late answer does not override a newer one. */
  const chosen = useRef(0);
  const at = moment.value;

  useEffect(() => {
    get('/v1/moments').then(setBounds, () => setBounds(null));
  }, [at === 0]);
  if (!bounds || !bounds.first.at) return at ? html`<footer class="moments"><${Now} at=${at} /></footer>` : null;

  const first = millis(bounds.first.at) ?? 0;
  const last = Math.max(first + 1, still ?? now.value);
  const isMine = choice !== null && (choice.seq === 0 || choice.seq === at);
  const time = isMine ? choice.time : at ? (momentAt.value ?? first) : last;
  const step = still !== null && isMine ? choice.step : at || isMine ? stepOf(time, first, last) : STEPS;
  const show = async (/** @type {number} */ wanted, /** @type {number} */ step) => {
    chosen.current += 1;
    const mine = chosen.current;
    const seq = await showAt(wanted, bounds, () => mine === chosen.current);
    if (mine === chosen.current) setChoice(seq ? { time: wanted, step, seq } : null);
  };
  const choose = (/** @type {number} */ value) => {
    const wanted = timeAt(value, first, last);
    setStill(last);
    setChoice({ time: wanted, step: value, seq: 0 });
    clearTimeout(moving.current);
    clearTimeout(waiting.current);
    waiting.current = setTimeout(() => {
      if (value < STEPS) return show(wanted, value);
      chosen.current += 1;
      setChoice(null);
      return changeQuery({ at: undefined });
    }, SETTLED_MS);
  };
  const settle = () => {
    clearTimeout(moving.current);
    moving.current = setTimeout(() => setStill(null), STILL_MS);
  };
  return html`<footer class="moments" aria-label="Moment">
    <${Pick} first=${first} time=${time} onPick=${(/** @type {number} */ wanted) => show(wanted, stepOf(wanted, first, last))} />
    <span class="edge muted">${clock(first, now.value)}</span>
    <${Range} first=${first} last=${last} step=${step} text=${at ? `${clock(time, now.value)}, commit ${at}` : 'now'} onInput=${choose} onChange=${settle} />
    <span class="side">${at ? html`<${Now} at=${at} />` : html`<span class="edge">Now <${LastCommit} /></span>`}</span>
  </footer>`;
}

/** The bar, with the time under the mouse.
 * @param {{first: number, last: number, step: number, text: string, onInput: (step: number) => void, onChange: () => void}} props */
function Range({ first, last, step, text, onInput, onChange }) {
  const [under, setUnder] = useState(/** @type {{x: number, step: number}|null} */ (null));
  const look = (/** @type {MouseEvent} */ event) => {
    const bar = /** @type {HTMLElement} */ (event.currentTarget);
    const x = event.clientX - bar.getBoundingClientRect().left;
    setUnder({ x, step: stepUnder(x, bar.clientWidth) });
  };
  return html`<span class="range" onMouseMove=${look} onMouseLeave=${() => setUnder(null)}>
    <input
      type="range"
      min="0"
      max=${STEPS}
      value=${step}
      aria-label="Moment that the pages show"
      aria-valuetext=${text}
      onInput=${(/** @type {any} */ event) => onInput(Number(event.target.value))}
      onChange=${onChange}
    />
    ${under && html`<span class="under" aria-hidden="true" style=${{ left: `${under.x}px` }}>${under.step >= STEPS ? 'now' : clock(timeAt(under.step, first, last), now.value)}</span>`}
  </span>`;
}

/** The clock opens a field for a date and time. @param {{first: number, time: number, onPick: (time: number) => void}} props */
function Pick({ first, time, onPick }) {
  const [text, setText] = useState(/** @type {string|null} */ (null));
  const field = useRef(/** @type {HTMLInputElement|null} */ (null));
  const isOpen = text !== null;
  useEffect(() => {
    if (isOpen) field.current?.focus();
  }, [isOpen]);
  const pick = (/** @type {Event} */ event) => {
    event.preventDefault();
    const wanted = new Date(field.current?.value ?? '').getTime();
    if (Number.isNaN(wanted)) return;
    setText(null);
    onPick(Math.min(wanted, Date.now()));
  };
  return html`<span class="pick">
    <button type="button" class="quiet round" aria-label="Choose a date and time" title="Choose a date and time" aria-expanded=${isOpen} onClick=${() => setText(isOpen ? null : fieldOf(time))}><${Icon} name="clock" /></button>
    ${isOpen &&
    html`<form onSubmit=${pick} onKeyDown=${(/** @type {KeyboardEvent} */ event) => event.key === 'Escape' && setText(null)}>
      <label class="field"><span class="label">Show the cluster at</span><input ref=${field} type="datetime-local" step="1" min=${fieldOf(first)} required value=${text} /></label>
      <button type="submit" class="primary">Show</button>
    </form>`}
  </span>`;
}

/** @param {{at: number}} props */
function Now({ at }) {
  const { path, query } = place.value;
  const time = momentAt.value;
  return html`<span class="then" role="status"><b>Past · ${time === null ? `commit ${count(at)}` : clock(time, now.value)}</b>${time !== null && html`<span class="muted"> · ${ago(time, now.value)} · commit ${count(at)}</span>`}</span>
    <a class="button primary" href=${href(path, { ...query, at: undefined })}>Back to now</a>`;
}
