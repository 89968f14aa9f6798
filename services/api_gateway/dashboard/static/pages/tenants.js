// @ts-check
/** Tenants: what they hold, what they may hold, what they have used, and GPUs that stay idle. */
import { changeQuery, href, moment, place } from '../data/router.js';
import { useAnswer, useList } from '../data/use_answer.js';
import { html } from '../html.js';
import { Choice, CommandLine, Empty, Foot, Trouble } from '../parts/basics.js';
import { Bar } from '../parts/state.js';
import { Table } from '../parts/table.js';
import { count, counted, decimal } from '../view/format.js';
import { budget, usageByTenant } from '../view/tenants.js';

const PAGE = 200;
const SPANS = [['1d', 'Day'], ['7d', 'Week'], ['30d', 'Month']];

export default function TenantsPage() {
  const since = place.value.query.since ?? '7d';
  const list = useList('/v1/tenants', 'tenants', { limit: PAGE }, { topic: 'summary', reread: true });
  const usage = useAnswer(moment.value ? null : '/v1/usage', { since, by: 'tenant' });
  const used = usageByTenant(usage.data?.usage ?? []);
  const url = (/** @type {any} */ tenant) => href(`/tenants/${encodeURIComponent(tenant.name)}`);
  const of = (/** @type {any} */ tenant) => used.get(tenant.name) ?? { gpuHours: 0, idleHours: 0, tokens: 0 };
  const columns = [
    { name: 'name', title: 'Tenant', cell: (/** @type {any} */ tenant) => html`<a class="strong" href=${url(tenant)}>${tenant.name}</a>` },
    {
      name: 'gpus', title: 'GPUs now', width: '170px', cell: (/** @type {any} */ tenant) =>
        tenant.max_gpus
          ? html`<span class="cell-bar"><${Bar} whole=${tenant.max_gpus} label=${`${tenant.gpus_held} of ${tenant.max_gpus} GPUs`} parts=${[{ value: tenant.gpus_held, tone: tenant.gpus_held > tenant.max_gpus * 0.95 ? 'wait' : 'run', name: 'held' }]} /><span>${decimal(tenant.gpus_held, 2)} / ${decimal(tenant.max_gpus, 2)}</span></span>`
          : html`${decimal(tenant.gpus_held, 2)} <span class="muted">no limit</span>`,
    },
    { name: 'waiting', title: 'Waiting', width: '80px', right: true, cell: (/** @type {any} */ tenant) => count(tenant.jobs_waiting) },
    {
      name: 'budget', title: 'Budget', width: '200px', from: 'medium', cell: (/** @type {any} */ tenant) => {
        const shown = budget(tenant);
        return shown.whole
          ? html`<span class="cell-bar"><${Bar} whole=${shown.whole} label=${shown.words} parts=${[{ value: shown.used, tone: shown.tone, name: 'used' }]} /><span class="wide">${shown.words}</span></span>`
          : html`<span class="muted">${shown.words}</span>`;
      },
    },
    { name: 'hours', title: html`<span title="GPU hours of jobs and replicas that ended in this period">GPU hours, ended</span>`, width: '134px', right: true, from: 'medium', cell: (/** @type {any} */ tenant) => decimal(of(tenant).gpuHours) },
    { name: 'idle', title: 'Held idle', width: '100px', right: true, from: 'medium', cell: (/** @type {any} */ tenant) => html`<span class=${of(tenant).idleHours > 1 ? 'warn-text' : ''}>${of(tenant).idleHours ? `${decimal(of(tenant).idleHours)} h` : ''}</span>` },
    { name: 'tokens', title: 'Tokens', width: '110px', right: true, from: 'large', cell: (/** @type {any} */ tenant) => (of(tenant).tokens ? count(of(tenant).tokens) : '') },
    { name: 'weight', title: 'Weight', width: '76px', right: true, from: 'large', cell: (/** @type {any} */ tenant) => String(tenant.weight) },
  ];
  return html`<div class="page filled">
    <div class="page-head"><h1>Tenants</h1><span class="sub">${list.rows.length ? counted(list.rows.length, 'tenant') : ''}</span>
      ${!moment.value && html`<div class="actions"><${Choice} label="Usage of the last" value=${since} choices=${SPANS} onChange=${(/** @type {string} */ span) => changeQuery({ since: span })} /></div>`}
    </div>
    <${Trouble} error=${list.error} retry=${list.again} />
    ${usage.error && html`<p class="note warn">${usage.error.message}</p>`}
    <section class="panel fill" aria-label="Tenants"><div class="content">
      <${Table} label="Tenants" rows=${list.rows} columns=${columns} keyOf=${(/** @type {any} */ tenant) => tenant.name} urlOf=${url} onEnd=${list.more} loading=${list.loading}
        empty=${html`<${Empty} title="No tenant"><${CommandLine} line="muster tenant set physics --gpus 16" /><//>`} />
    </div></section>
    <${Foot} line=${`muster usage --since ${since} --by tenant`} />
  </div>`;
}
