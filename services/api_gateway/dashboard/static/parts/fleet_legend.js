// @ts-check
/** The legend of the fleet map: who has how much. A row keeps its colour, and shows only itself when
 * it is pressed. It is also the table behind the picture. */
import { changeQuery } from '../data/router.js';
import { html } from '../html.js';
import { hashed } from '../view/colours.js';
import { gpus, percent, shortened } from '../view/format.js';
import { Panel } from './basics.js';

const ROWS_MAX = 40;
const TITLES = { tenant: 'Held by tenant', job: 'Held by job', model: 'Held by model', health: 'Health' };

/** @param {{mode: string, found: any, only: string, colours: any, ink: any}} props */
export function Legend({ mode, found, only, colours, ink }) {
  const { rows, totals } = found;
  const colour = (/** @type {string} */ key) => {
    const at = key === '' ? -1 : mode === 'job' ? hashed(key) : colours.place(key);
    return at < 0 ? ink.other : ink.series[at];
  };
  if (mode === 'health') {
    const lines = [
      ['Healthy', totals.ok, ink.good, ''],
      ['Degraded or draining', totals.warn, ink.warn, 'warn'],
      ['Quarantined or resetting', totals.bad, ink.bad, 'bad'],
      ['Offline or unreachable', totals.off, ink.off, 'off'],
    ];
    return html`<${Panel} title="Health" class="flush legend"><ul>${lines.map(([name, n, fill, mark]) => html`<li key=${name}><span class=${`swatch mark-${mark}`} style=${{ background: fill }}></span><span class="grow">${name}</span><b>${n}</b></li>`)}</ul><//>`;
  }
  return html`<${Panel} title=${TITLES[/** @type {keyof typeof TITLES} */ (mode)]} class="flush legend">
    <ul>
      ${rows.slice(0, ROWS_MAX).map(
        (/** @type {any} */ row) => html`<li key=${row.key}>
          <button type="button" class="quiet" aria-pressed=${only === row.key} disabled=${row.key === ''} onClick=${() => changeQuery({ only: only === row.key ? undefined : row.key })}>
            <span class="swatch" style=${{ background: colour(row.key) }}></span>
            <span class="grow" title=${row.key}>${row.key === '' ? 'other tenants' : shortened(row.name, 26)}</span>
            <b>${gpus(row.share)}</b><span class="muted part">${mode === 'job' ? '' : `${percent(row.share, totals.total * 100)} %`}</span>
          </button>
        </li>`,
      )}
      ${rows.length > ROWS_MAX && html`<li class="muted">and ${rows.length - ROWS_MAX} more</li>`}
      <li class="line"><span class="swatch free"></span><span class="grow">Free</span><b>${gpus(totals.free)}</b><span class="muted part">${percent(totals.free, totals.total * 100)} %</span></li>
      ${totals.warn + totals.bad + totals.off > 0 &&
      html`<li class="line"><span class="swatch mark-bad free"></span><span class="grow">Not healthy</span><b>${totals.warn + totals.bad + totals.off}</b><span class="muted part"></span></li>`}
    </ul>
  <//>`;
}
