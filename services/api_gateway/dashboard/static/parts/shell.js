// @ts-check
/** The frame of every page: navigation, the counts, the connection, the moment that is shown. */
import { useEffect } from 'preact/hooks';
import { now } from '../data/clock.js';
import { href, moment, place } from '../data/router.js';
import { session, signOut, who } from '../data/session.js';
import { connection, shownSeq } from '../data/stream.js';
import { counts, summary } from '../data/summary.js';
import { dark, switchTheme } from '../data/theme.js';
import { newer } from '../data/version.js';
import { html } from '../html.js';
import { clock, count, gpus, percent } from '../view/format.js';
import { creates, operates } from '../view/rights.js';
import { Dialog, Messages } from './dialog.js';
import { Icon } from './icons.js';
import { Bar } from './state.js';
import { Moments } from './time_slider.js';

const PAGES = [
  ['fleet', '/', 'Fleet', 'fleet'],
  ['queue', '/queue', 'Queue', 'queue'],
  ['jobs', '/jobs', 'Jobs', 'jobs'],
  ['models', '/models', 'Models', 'models'],
  ['nodes', '/nodes', 'Nodes', 'nodes'],
  ['tenants', '/tenants', 'Tenants', 'tenants'],
  ['audit', '/audit', 'Audit', 'audit'],
];
const WITHIN = { job: 'jobs', submit: 'jobs', model: 'models', deploy: 'models', node: 'nodes', tenant: 'tenants' };

/** @param {{children: any}} props */
export function Shell({ children }) {
  const { page } = place.value;
  const current = WITHIN[/** @type {keyof typeof WITHIN} */ (page)] ?? page;
  useEffect(() => {
    const name = PAGES.find(([id]) => id === current)?.[2] ?? 'Muster';
    document.title = `${place.value.name && page !== 'missing' ? `${place.value.name} · ` : ''}${name} · Muster`;
  }, [page, place.value.name]);
  return html`<div class=${`shell ${moment.value ? 'past' : ''}`}>
    <a class="skip" href="#main">Go to the content</a>
    <nav class="pages" aria-label="Pages">
      <a class="brand" href=${href('/')} aria-label="Muster, fleet"><svg viewBox="0 0 32 32" aria-hidden="true"><path d="M6 6h5.5v5.5H6zM13.25 13.25h5.5v5.5h-5.5zM20.5 6H26v5.5h-5.5zM6 13.25h5.5v5.5H6zM20.5 13.25H26v5.5h-5.5zM6 20.5h5.5V26H6zM20.5 20.5H26V26h-5.5z" /></svg><span>Muster</span></a>
      <ul>
        ${PAGES.map(
          ([id, path, title, icon]) => html`<li key=${id}>
            <a href=${href(path)} aria-current=${id === current ? 'page' : undefined} title=${title}><${Icon} name=${icon} /><span>${title}</span><${Badge} page=${id} /></a>
          </li>`,
        )}
      </ul>
      ${creates(who()) && html`<a class="new" href=${href('/submit')} title="Submit a job"><${Icon} name="submit" /><span>Submit a job</span></a>`}
    </nav>
    <header class="top">
      <${Counts} />
      <div class="right">
        ${newer.value && html`<button type="button" class="primary" title="The gateway was upgraded. This page is of an earlier version." onClick=${() => location.reload()}>Load the new version</button>`}
        <${Connection} />
        <button type="button" class="quiet round" aria-label=${dark.value ? 'Switch to light' : 'Switch to dark'} title=${dark.value ? 'Switch to light' : 'Switch to dark'} onClick=${switchTheme}><${Icon} name=${dark.value ? 'sun' : 'moon'} /></button>
        <${User} />
      </div>
    </header>
    <main id="main" tabindex="-1">${children}</main>
    <${Moments} />
    <${Dialog} />
    <${Messages} />
  </div>`;
}

/** @param {{page: string}} props */
function Badge({ page }) {
  if (!summary.value) return null;
  const { jobs, nodes } = counts(summary.value);
  const waiting = (jobs.queued ?? 0) + (jobs.pending ?? 0);
  const sick = (nodes.degraded ?? 0) + (nodes.unreachable ?? 0);
  if (page === 'queue' && waiting) return html`<b class="badge">${count(waiting)}</b>`;
  if (page === 'nodes' && sick) return html`<b class="badge warn" title="nodes that are not healthy">${count(sick)}</b>`;
  return null;
}

function Counts() {
  if (!summary.value) return html`<div class="counts"></div>`;
  const { total, held, unhealthy, jobs } = counts(summary.value);
  const waiting = (jobs.queued ?? 0) + (jobs.pending ?? 0);
  const used = percent(held, total * 100);
  return html`<div class="counts" role="group" aria-label="The cluster">
    <a href=${href('/')}><span class="name">GPUs</span><b>${gpus(held)}</b><span class="of">of ${count(total)}<span class="words"> in use</span></span><${Bar} whole=${total * 100} parts=${[{ value: held, tone: 'run', name: 'held' }]} label=${`${used} % of the GPUs are held`} /></a>
    <a href=${href('/jobs', { state: 'running' })}><span class="name">Running</span><b>${count(jobs.running ?? 0)}</b></a>
    <a href=${href('/queue')}><span class="name">Waiting</span><b>${count(waiting)}</b></a>
    <a href=${href('/nodes')} class=${unhealthy ? 'warn-text' : ''}><span class="name">Unhealthy</span><b>${count(unhealthy)}</b></a>
  </div>`;
}

function Connection() {
  const { state, since } = connection.value;
  if (moment.value) return null;
  const at = clock(since, now.value);
  const shown = {
    live: ['good', 'Live', `Changes arrive as they happen. Commit ${shownSeq.value}.`],
    polling: ['warn', 'Every 5 s', 'This network refuses WebSockets, so the page reads again every 5 seconds.'],
    stale: ['bad', `Stale since ${at}`, 'The gateway does not answer. The page shows what it last knew, and tries again.'],
    connecting: ['off', 'Connecting', 'The page connects to the gateway.'],
  }[state] ?? ['off', state, ''];
  return html`<span class=${`connection tone-${shown[0]}`} role="status" title=${shown[2]}>
    <svg viewBox="0 0 12 12" aria-hidden="true">${state === 'live' ? html`<circle cx="6" cy="6" r="4" />` : html`<path d="M6 1.6L11 10.4H1z" />`}</svg>
    <span>${shown[1]}</span>
  </span>`;
}

function User() {
  const me = who();
  if (!me || !session.value) return null;
  return html`<details class="user">
    <summary><span class="unseen">Signed in as ${me.user}</span><span class="face" aria-hidden="true">${(me.user || '?').slice(0, 1).toUpperCase()}</span><span class="who" aria-hidden="true">${me.user}</span></summary>
    <div class="menu">
      <p><b>${me.user}</b><br /><span class="muted">tenant ${me.tenant} · ${me.role}${operates(me) ? '' : ', sees its tenant only'}</span></p>
      <button type="button" onClick=${signOut}><${Icon} name="out" /> Sign out</button>
    </div>
  </details>`;
}
