// @ts-check
/** The time slider: every page at any past moment of the log. */
import { useEffect, useRef, useState } from 'preact/hooks';
import { now } from '../data/clock.js';
import { get } from '../data/api.js';
import { changeQuery, href, moment, place } from '../data/router.js';
import { lastSeq } from '../data/stream.js';
import { html } from '../html.js';
import { ago, clock, count, millis } from '../view/format.js';
import { tell } from './dialog.js';
import { Icon } from './icons.js';

const SETTLED_MS = 180;
const STEPS = 1000;

/** The time at a place of the slider. @param {number} step @param {number} first @param {number} last */
export const timeAt = (step, first, last) => Math.round(first + ((last - first) * step) / STEPS);

export function Moments() {
  const [bounds, setBounds] = useState(/** @type {{first: {seq: number, at: string}, last: {seq: number, at: string}}|null} */ (null));
  const [step, setStep] = useState(STEPS);
  const [shownAt, setShownAt] = useState(/** @type {number|null} */ (null));
  const waiting = useRef(/** @type {any} */ (undefined));
  /** Counts choices, so that a late answer does not override a newer one. */
  const chosen = useRef(0);
  const at = moment.value;

  useEffect(() => {
    get('/v1/moments').then(setBounds, () => setBounds(null));
  }, []);
  useEffect(() => {
    if (!at) {
      setStep(STEPS);
      setShownAt(null);
      return;
    }
    get('/v1/moments', { at }).then((found) => {
      const time = millis(found.moment?.at);
      setShownAt(time);
      if (time !== null && bounds) {
        const first = millis(bounds.first.at) ?? 0;
        const last = Math.max(first + 1, millis(bounds.last.at) ?? 0);
        setStep(Math.round((STEPS * (time - first)) / (last - first)));
      }
    }, () => {});
  }, [at, bounds]);
  if (!bounds) return at ? html`<footer class="moments"><${Now} at=${at} /></footer>` : null;

  const first = millis(bounds.first.at) ?? 0;
  const last = at ? Math.max(first + 1, millis(bounds.last.at) ?? 0) : now.value;
  const time = step >= STEPS && !at ? last : timeAt(step, first, last);
  const choose = (/** @type {number} */ value) => {
    setStep(value);
    clearTimeout(waiting.current);
    waiting.current = setTimeout(async () => {
      if (value >= STEPS) {
        chosen.current += 1;
        changeQuery({ at: undefined });
        get('/v1/moments').then(setBounds, () => {});
        return;
      }
      chosen.current += 1;
      const choice = chosen.current;
      try {
        const found = await get('/v1/moments', { at: new Date(timeAt(value, first, last)).toISOString() });
        if (choice === chosen.current) changeQuery({ at: found.moment?.seq });
      } catch (error) {
        if (choice === chosen.current) tell(/** @type {Error} */ (error).message);
      }
    }, SETTLED_MS);
  };
  return html`<footer class="moments" aria-label="Moment">
    <${Icon} name="clock" />
    <span class="edge muted">${clock(first, now.value)}</span>
    <input
      type="range"
      min="0"
      max=${STEPS}
      value=${step}
      aria-label="Moment that the pages show"
      aria-valuetext=${at ? `${clock(time, now.value)}, commit ${at}` : 'now'}
      onInput=${(/** @type {any} */ event) => choose(Number(event.target.value))}
    />
    ${at ? html`<${Now} at=${at} time=${shownAt ?? time} />` : html`<span class="edge">Now <span class="muted">· commit ${count(lastSeq.value)}</span></span>`}
  </footer>`;
}

/** @param {{at: number, time?: number|null}} props */
function Now({ at, time = null }) {
  const { path, query } = place.value;
  return html`<span class="then" role="status"><b>${time === null ? `commit ${count(at)}` : clock(time, now.value)}</b>${time !== null && html`<span class="muted"> · ${ago(time, now.value)} · commit ${count(at)}</span>`}</span>
    <a class="button primary" href=${href(path, { ...query, at: undefined })}>Back to now</a>`;
}
