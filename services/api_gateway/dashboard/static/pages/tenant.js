// @ts-check
/** One tenant: its limits and use, and what its users and models used. */
import { segment } from '../data/api.js';
import { changeQuery, href, moment, place } from '../data/router.js';
import { useAnswer } from '../data/use_answer.js';
import { html } from '../html.js';
import { Choice, Empty, Facts, Foot, Loading, Panel, Trouble } from '../parts/basics.js';
import { Bar } from '../parts/state.js';
import { Table } from '../parts/table.js';
import { bytes, count, decimal } from '../view/format.js';
import { budget } from '../view/tenants.js';

const SPANS = [['1d', 'Day'], ['7d', 'Week'], ['30d', 'Month']];

/** @param {{name: string}} props */
export default function TenantPage({ name }) {
  const since = place.value.query.since ?? '7d';
  const { data: tenant, error, again } = useAnswer(`/v1/tenants/${segment(name)}`, {}, { every: 5000 });
  const usage = useAnswer(moment.value ? null : '/v1/usage', { since, by: 'tenant,user,model' });
  if (!tenant) return html`<div class="page"><div class="page-head"><h1>${name}</h1></div><${Trouble} error=${error} retry=${again} />${!error && html`<${Loading} />`}</div>`;
  const shown = budget(tenant);
  const none = (/** @type {number} */ value, /** @type {any} */ text) => (value ? text : 'no limit');
  const rows = (usage.data?.usage ?? []).filter((/** @type {any} */ line) => line.payer === name).map((/** @type {any} */ line, /** @type {number} */ i) => ({ ...line, key: i }));
  const columns = [
    { name: 'user', title: 'User', width: '24%', cell: (/** @type {any} */ line) => line.user || html`<span class="muted">${line.kind === 'idle' ? 'no user' : line.tenant}</span>` },
    { name: 'kind', title: 'Kind', width: '110px', cell: (/** @type {any} */ line) => (line.kind === 'idle' ? html`<span class="warn-text">held idle</span>` : line.kind) },
    { name: 'model', title: 'Model', cell: (/** @type {any} */ line) => line.model && html`<a href=${href(`/models/${segment(line.model)}`)}>${line.model}</a>` },
    { name: 'hours', title: html`<span title="GPU hours of jobs and replicas that ended in this period">GPU hours, ended</span>`, width: '134px', right: true, cell: (/** @type {any} */ line) => decimal(line.gpu_seconds / 3600, 2) },
    { name: 'requests', title: 'Requests', width: '100px', right: true, from: 'medium', cell: (/** @type {any} */ line) => (line.requests ? count(line.requests) : '') },
    { name: 'tokens', title: 'Tokens in / out', width: '170px', right: true, from: 'medium', cell: (/** @type {any} */ line) => (line.input_tokens || line.output_tokens ? `${count(line.input_tokens)} / ${count(line.output_tokens)}` : '') },
  ];
  return html`<div class="page">
    <div class="page-head"><h1><a class="crumb" href=${href('/tenants')}>Tenants</a> <span class="crumb" aria-hidden="true">/</span> ${tenant.name}</h1></div>
    <${Trouble} error=${error} retry=${again} />
    <${Panel} title="Now" actions=${html`<a href=${href('/jobs', { tenant: tenant.name })}>Its jobs</a>`}>
      <div class="meters">
        <div><h3>GPUs</h3><b>${decimal(tenant.gpus_held, 2)}</b> <span class="muted">${none(tenant.max_gpus, `of ${decimal(tenant.max_gpus, 2)}`)}</span><${Bar} whole=${tenant.max_gpus || 1} label="GPUs held" parts=${[{ value: tenant.max_gpus ? tenant.gpus_held : 0, tone: 'run', name: 'held' }]} /></div>
        <div><h3>Waiting jobs</h3><b>${count(tenant.jobs_waiting)}</b> <span class="muted">${none(tenant.max_waiting, `of ${count(tenant.max_waiting)}`)}</span><${Bar} whole=${tenant.max_waiting || 1} label="Waiting jobs" parts=${[{ value: tenant.max_waiting ? tenant.jobs_waiting : 0, tone: 'wait', name: 'waiting' }]} /></div>
        <div><h3>Budget</h3><b>${decimal(shown.used)}</b> <span class="muted">${shown.whole ? `of ${decimal(shown.whole)} GPU hours` : 'GPU hours, no budget'}</span><${Bar} whole=${shown.whole || 1} label=${shown.words} parts=${[{ value: shown.whole ? shown.used : 0, tone: shown.tone, name: 'used' }]} /></div>
      </div>
      <${Facts} rows=${[['Weight', String(tenant.weight)], ['Requests a minute', none(tenant.requests_per_minute, count(tenant.requests_per_minute))], ['Tokens a minute', none(tenant.tokens_per_minute, count(tenant.tokens_per_minute))], ['Shares devices', tenant.shares_devices ? 'yes' : 'no'], ['Pool memory', bytes(tenant.pool_bytes_held)], ['Keys', String(tenant.keys)]]} />
    <//>
    ${!moment.value &&
    html`<${Panel} title="Usage" class="flush" actions=${html`<${Choice} label="Usage of the last" value=${since} choices=${SPANS} onChange=${(/** @type {string} */ span) => changeQuery({ since: span })} />`}>
      <${Trouble} error=${usage.error} retry=${usage.again} />
      <${Table} label="Usage" rows=${rows} columns=${columns} keyOf=${(/** @type {any} */ line) => String(line.key)} loading=${usage.loading} empty=${!usage.error && html`<${Empty} title="Nothing was charged in this time">A job or replica is charged when it ends.<//>`} />
    <//>`}
    <${Foot} line=${`muster tenant show ${tenant.name}`} />
  </div>`;
}
