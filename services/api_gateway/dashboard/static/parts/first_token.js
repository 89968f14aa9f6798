// @ts-check
/** Times to the first token at this gateway, from its metrics: a histogram, and what 50, 90 and 99 of 100 requests had. */
import { useEffect, useState } from 'preact/hooks';
import { moment } from '../data/router.js';
import { html } from '../html.js';
import { buckets, quantile } from '../view/metrics.js';
import { count, gap } from '../view/format.js';
import { Panel } from './basics.js';

const READ_MS = 10_000;
/** Percentiles of fewer requests are not shown. */
const LEAST = 20;
const NAME = 'muster_model_first_token_seconds';

/** @param {{name: string}} props */
export function FirstToken({ name }) {
  const [found, setFound] = useState(/** @type {{le: number, count: number}[]} */ ([]));
  useEffect(() => {
    if (moment.value) return undefined;
    const read = async () => {
      if (document.hidden) return;
      const answer = await fetch('/metrics').catch(() => null);
      if (answer?.ok) setFound(buckets(await answer.text(), NAME, { model: name }));
    };
    read();
    const timer = setInterval(read, READ_MS);
    return () => clearInterval(timer);
  }, [name, moment.value]);
  const total = found.at(-1)?.count ?? 0;
  if (!total) return null;
  const rows = found.map((each, i) => ({ le: each.le, n: each.count - (i ? found[i - 1].count : 0) })).filter((each) => each.n > 0);
  const most = Math.max(...rows.map((each) => each.n));
  return html`<${Panel} title="Time to the first token">
    <dl class="quantiles">${(total < LEAST ? [] : [0.5, 0.9, 0.99]).map((part) => html`<div key=${part}><dt>p${part * 100}</dt><dd>${gap(quantile(found, part) * 1000)}</dd></div>`)}<div><dt>requests</dt><dd>${count(total)}</dd></div></dl>
    <ul class="histogram" aria-label="Requests by their time to the first token">
      ${rows.map((each) => html`<li key=${each.le}><span class="muted">${Number.isFinite(each.le) ? `≤ ${gap(each.le * 1000)}` : 'longer'}</span><span class="track"><i class="fill-run" style=${{ width: `${(100 * each.n) / most}%` }}></i></span><b>${count(each.n)}</b></li>`)}
    </ul>
    <p class="muted">Measured by this gateway since it started.${total < LEAST ? ` Percentiles appear after ${LEAST} requests.` : ''}</p>
  <//>`;
}
