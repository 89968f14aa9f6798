// @ts-check
/** Lines over time. The one module that knows uPlot; behind each chart is a table of its last values. */
import { useEffect, useRef } from 'preact/hooks';
import uPlot from 'uplot';
import { dark } from '../data/theme.js';
import { html } from '../html.js';
import { palette } from '../view/colours.js';
import { decimal } from '../view/format.js';

const HIGH = 132;
/** The least time that a chart spans. */
const SPAN_S = 60;

/** @param {number} seconds */
function timeOfDay(seconds) {
  const date = new Date(seconds * 1000);
  return [date.getHours(), date.getMinutes(), date.getSeconds()].map((n) => String(n).padStart(2, '0')).join(':');
}

/** The times that a chart spans: from its first point on, at least SPAN_S. @param {number[]} times */
export function spanOf(times) {
  const first = times[0] ?? Date.now() / 1000;
  return [first, Math.max(first + SPAN_S, times.at(-1) ?? first)];
}

/** @param {{label: string, unit?: string, series: {name: string, values: (number|null)[]}[], times: number[], version: number, top?: number}} props */
export function Chart({ label, unit = '', series, times, version, top }) {
  const box = useRef(/** @type {HTMLDivElement|null} */ (null));
  const plot = useRef(/** @type {any} */ (null));
  const ink = palette(dark.value);
  const shape = `${series.map((each) => each.name).join()}|${dark.value}`;
  useEffect(() => {
    const element = /** @type {HTMLDivElement} */ (box.current);
    const axis = { stroke: ink.off, grid: { stroke: ink.edge, width: 0.5 }, ticks: { show: false }, font: '11px system-ui', size: 40 };
    const made = new uPlot(
      {
        width: element.clientWidth,
        height: HIGH,
        legend: { show: false },
        cursor: { y: false, points: { size: 6 } },
        scales: {
          // A single point would get the span of a day from uPlot.
          x: { range: (/** @type {any} */ u) => spanOf(u.data[0]) },
          y: { range: (/** @type {any} */ _, /** @type {number} */ low, /** @type {number} */ high) => [Math.min(0, low), top ?? Math.max(1, high * 1.1)] },
        },
        axes: [
          { ...axis, size: 24, space: 80, values: (/** @type {any} */ _, /** @type {number[]} */ times) => times.map(timeOfDay) },
          { ...axis, values: (/** @type {any} */ _, /** @type {number[]} */ values) => values.map((value) => decimal(value)) },
        ],
        series: [{}, ...series.map((each, place) => ({ label: each.name, stroke: ink.series[place % ink.series.length], width: 1.75, dash: place % 2 ? [5, 3] : undefined }))],
      },
      [times, ...series.map((each) => each.values)],
      element,
    );
    plot.current = made;
    const resized = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height: HIGH }));
    resized.observe(element);
    return () => {
      resized.disconnect();
      made.destroy();
    };
  }, [shape]);
  useEffect(() => {
    plot.current?.setData([times, ...series.map((each) => each.values)]);
  }, [version]);
  return html`<figure class="chart">
    <figcaption><b>${label}</b>${series.map((each, place) => html`<span key=${each.name}><i class=${place % 2 ? 'dashed' : ''} style=${{ borderColor: ink.series[place % ink.series.length] }}></i>${each.name} <b>${each.values.at(-1) == null ? '–' : decimal(Number(each.values.at(-1)))}</b>${unit && html` <span class="muted">${unit}</span>`}</span>`)}</figcaption>
    <div ref=${box} aria-hidden="true"></div>
  </figure>`;
}
