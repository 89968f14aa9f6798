// @ts-check
/** The models that this cluster serves. */
import { href } from '../data/router.js';
import { who } from '../data/session.js';
import { present } from '../data/shown.js';
import { useList } from '../data/use_answer.js';
import { html } from '../html.js';
import { CommandLine, Empty, Foot, Trouble } from '../parts/basics.js';
import { State } from '../parts/state.js';
import { Table } from '../parts/table.js';
import { ago, counted, millis } from '../view/format.js';
import { request } from '../view/jobs.js';
import { creates } from '../view/rights.js';

const PAGE = 200;

export default function ModelsPage() {
  const list = useList('/v1/deployments', 'deployments', { limit: PAGE }, { topic: 'jobs', filter: { kind: 'replica', snapshot: false }, reread: true });
  const url = (/** @type {any} */ model) => href(`/models/${encodeURIComponent(model.name)}`);
  const columns = [
    { name: 'name', title: 'Model', cell: (/** @type {any} */ model) => html`<a class="strong" href=${url(model)}>${model.name}</a>${model.served_name && html` <span class="muted">${model.served_name}</span>`}` },
    { name: 'state', title: 'State', width: '136px', cell: (/** @type {any} */ model) => html`<${State} state=${model.state} />` },
    { name: 'ready', title: 'Ready', width: '92px', right: true, cell: (/** @type {any} */ model) => html`<b>${model.ready}</b> <span class="muted">of ${model.wanted}</span>` },
    { name: 'request', title: 'Each replica', width: '120px', from: 'medium', cell: request },
    { name: 'scaling', title: 'Scaling', width: '110px', from: 'medium', cell: (/** @type {any} */ model) => (model.scaling ? `${model.scaling.replicas_min} to ${model.scaling.replicas_max}` : 'fixed') },
    { name: 'tenant', title: 'Tenant', width: '14%', from: 'medium', cell: (/** @type {any} */ model) => model.tenant },
    { name: 'crash', title: 'Last crash', width: '24%', from: 'large', cell: (/** @type {any} */ model) => html`<span class="muted" title=${model.last_crash}>${model.last_crash && `${ago(millis(model.last_crash_at), present.value)}: ${model.last_crash}`}</span>` },
  ];
  return html`<div class="page filled">
    <div class="page-head">
      <h1>Models</h1><span class="sub">${list.rows.length ? counted(list.rows.length, 'model') : ''}</span>
      ${creates(who()) && html`<div class="actions"><a class="button primary" href=${href('/deploy')}>Deploy a model</a></div>`}
    </div>
    <${Trouble} error=${list.error} retry=${list.again} />
    <section class="panel fill" aria-label="Models"><div class="content">
      <${Table} label="Models" rows=${list.rows} columns=${columns} keyOf=${(/** @type {any} */ model) => model.name} urlOf=${url} onEnd=${list.more} loading=${list.loading}
        empty=${html`<${Empty} title="No model is deployed">
          ${creates(who()) && html`<a href=${href('/deploy')}>Deploy a model</a>`}
          <${CommandLine} line="muster deploy chat -- vllm serve Qwen/Qwen2.5-7B-Instruct --host {host} --port {port}" />
        <//>`} />
    </div></section>
    <${Foot} line="muster models" />
  </div>`;
}
