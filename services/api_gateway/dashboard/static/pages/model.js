// @ts-check
/** One model: its replicas, who waits for it, how it is scaled, and a chat with it. */
import { change, segment } from '../data/api.js';
import { now } from '../data/clock.js';
import { href, moment } from '../data/router.js';
import { who } from '../data/session.js';
import { present } from '../data/shown.js';
import { useAnswer } from '../data/use_answer.js';
import { html } from '../html.js';
import { CommandLine, Empty, Facts, Loading, Panel, Trouble } from '../parts/basics.js';
import { Chat } from '../parts/chat.js';
import { Action } from '../parts/dialog.js';
import { FirstToken } from '../parts/first_token.js';
import { Linked } from '../parts/linked.js';
import { Scale } from '../parts/scale.js';
import { Bar, State } from '../parts/state.js';
import { Table } from '../parts/table.js';
import { Why } from '../parts/why.js';
import * as lines from '../view/command_lines.js';
import { ago, clock, count, millis, sentence } from '../view/format.js';
import { request } from '../view/jobs.js';
import { changes, creates } from '../view/rights.js';

const GONE = ['stopping', 'undeployed'];
/** Undeployments of all models that are looked through for this one's. */
const UNDEPLOYED_SEEN = 50;
const TONES = ['run', 'wait', 'good', 'place', 'bad', 'off'];

/** @param {{name: string}} props */
export default function ModelPage({ name }) {
  const path = `/v1/deployments/${segment(name)}`;
  const { data: model, error, again } = useAnswer(path, {}, { topic: 'jobs', filter: { kind: 'replica', snapshot: false }, every: 5000 });
  if (!model) return html`<div class="page"><div class="page-head"><h1>${name}</h1></div><${Trouble} error=${error} retry=${again} />${!error && html`<${Loading} />`}</div>`;
  const may = changes(who(), model);
  const isGone = GONE.includes(model.state);
  return html`<div class="page">
    <div class="page-head">
      <h1><a class="crumb" href=${href('/models')}>Models</a> <span class="crumb" aria-hidden="true">/</span> ${model.name}</h1>
      <${State} state=${model.state} /><span class="sub">${isGone ? '' : `${model.ready} of ${model.wanted} ready · `}${model.tenant}${model.user && `/${model.user}`}</span>
      ${may &&
      !isGone &&
      html`<div class="actions">
        ${!model.scaling && html`<${Scale} model=${model} />`}
        <${Action} title=${`Redeploy ${model.name}?`} text="Its replicas are replaced one by one; others answer meanwhile." line=${lines.redeploy(model.name)} label="Redeploy" run=${() => change('POST', `${path}/redeploy`, {}).then(again)} done=${`${model.name} is redeployed: its replicas are replaced one by one.`} />
        <a class="button" href=${href('/deploy', { from: model.name, at: undefined })}>Edit</a>
        <${Action} title=${`Undeploy ${model.name}?`} text="Its replicas end after their open requests, and its GPUs become free." line=${lines.undeploy(model.name)} label="Undeploy" danger=${true} run=${() => change('DELETE', path).then(again)} done=${`${model.name} is undeployed.`} />
      </div>`}
    </div>
    <${Trouble} error=${error} retry=${again} />
    ${model.last_crash && !isGone && model.state !== 'ready' && html`<p class="note bad"><span><b>Last crash</b> ${ago(millis(model.last_crash_at), present.value)}: <${Linked} text=${sentence(model.last_crash)} model=${model.name} /></span>${may && html`<a class="button" href=${href('/deploy', { from: model.name, at: undefined })}>Edit and redeploy</a>`}</p>`}
    ${isGone && html`<${Gone} model=${model} />`}
    <div class="columns even">
      <div class="stack">
        <${Panel} title="Replicas" class="flush"><${Replicas} model=${model} /><//>
        ${model.law && !isGone && html`<${Panel} title="Scaling"><p>${model.law}</p><p class="muted">Between ${model.scaling?.replicas_min} and ${model.scaling?.replicas_max} replicas.</p><//>`}
        ${!isGone && html`<${Waiting} queue=${model.queue} /><${FirstToken} name=${model.name} />`}
      </div>
      <div class="stack">
        ${creates(who()) && !moment.value && !isGone && html`<${Chat} model=${model} />`}
      </div>
    </div>
    ${model.state !== 'ready' && may && !isGone && html`<${Why} path=${`${path}/why`} name=${model.name} at=${0} state="queued" model=${true} />`}
    <${Panel} title="Deployment">
      ${model.command.length > 0 && html`<${CommandLine} line=${model.command.map(lines.quoted).join(' ')} label="The replicas' command" />`}
      <${Facts}
        rows=${[
          ['Names', [model.served_name, ...model.aliases].filter(Boolean).join(', ')],
          ['Each replica', request(model)],
          ['Image', model.image],
          ['Generation', String(model.generation)],
          ['Last deployed', ago(millis(model.deployed_at), present.value)],
          ['Crashes', model.crashes || ''],
          ['Health path', model.health_path],
          ['Adapters', model.adapter_names.join(', ')],
          ['Shared with', model.shared_with.join(', ')],
        ]}
      />
    <//>
  </div>`;
}

/** Since when the model is gone, and how it comes back. @param {{model: any}} props */
function Gone({ model }) {
  const { data } = useAnswer('/v1/events', { kind: 'model.undeployed', last: UNDEPLOYED_SEEN, limit: 2 * UNDEPLOYED_SEEN }, { present: true });
  const fact = (data?.events ?? []).filter((/** @type {any} */ each) => each.fact.name === model.name && (!moment.value || each.seq <= moment.value)).at(-1);
  return html`<p class="note">
    <span><b>${fact ? `Undeployed at ${clock(millis(fact.at), now.value)}.` : 'Undeployed.'}</b> ${model.replicas.length ? 'Its replicas end after their open requests.' : 'No replica of it runs, and requests for it are refused.'}</span>
    ${creates(who()) && html`<a class="button primary" href=${href('/deploy', { from: model.name, at: undefined })}>Deploy again</a>`}
  </p>`;
}

/** When the next replica comes, in words. @param {any} model */
function coming(model) {
  if (GONE.includes(model.state)) return 'The model is not deployed.';
  if (!model.wanted) return 'The first request starts one.';
  const next = millis(model.next_try_at);
  return next !== null && model.state === 'crash_looping' ? `The next try is at ${clock(next, now.value)}.` : 'The scheduler starts them.';
}

/** @param {{model: any}} props */
function Replicas({ model }) {
  const columns = [
    { name: 'id', title: 'Replica', cell: (/** @type {any} */ each) => html`<a class="strong mono" href=${href(`/jobs/${segment(each.id)}`)}>${each.id}</a>` },
    { name: 'state', title: 'State', width: '116px', cell: (/** @type {any} */ each) => html`<${State} state=${each.ready ? 'ready' : each.state} label=${each.ready ? 'ready' : each.state} />` },
    { name: 'node', title: 'Node', width: '30%', cell: (/** @type {any} */ each) => each.node_id && html`<a href=${href(`/nodes/${segment(each.node_id)}`)}>${each.node_id}</a>` },
    { name: 'since', title: 'Ready', width: '96px', right: true, from: 'medium', cell: (/** @type {any} */ each) => (each.ready_at ? ago(millis(each.ready_at), present.value) : '') },
  ];
  return html`<${Table} label="Replicas" rows=${model.replicas} columns=${columns} keyOf=${(/** @type {any} */ each) => each.id} empty=${html`<${Empty} title="No replica runs">${coming(model)}<//>`} />`;
}

/** The requests that wait for the model, and the shares of the last minute. @param {{queue: any}} props */
function Waiting({ queue }) {
  if (!queue) return null;
  const whole = queue.shares.reduce((/** @type {number} */ sum, /** @type {any} */ each) => sum + each.percent, 0) || 100;
  return html`<${Panel} title="Requests at this gateway">
    <p><b>${count(queue.waiting_requests)}</b> ${queue.waiting_requests === 1 ? 'request waits' : 'requests wait'}${queue.waiting_tokens > 0 && html` <span class="muted">· ${count(queue.waiting_tokens)} tokens</span>`}</p>
    ${queue.shares.length > 0 &&
    html`<${Bar} whole=${whole} label=${queue.shares.map((/** @type {any} */ each) => `${each.tenant} ${each.percent} %`).join(', ')} parts=${queue.shares.map((/** @type {any} */ each, /** @type {number} */ i) => ({ value: each.percent, tone: TONES[i % TONES.length], name: each.tenant }))} />
      <ul class="shares">${queue.shares.map((/** @type {any} */ each, /** @type {number} */ i) => html`<li key=${`${each.tenant}/${each.priority}`}><i class=${`fill-${TONES[i % TONES.length]}`}></i><span>${each.tenant} <span class="muted">· ${each.priority} priority · weight ${each.weight}</span></span><b>${each.percent} %</b><span class="muted">${each.waiting_requests} wait</span></li>`)}</ul>
      <p class="muted">Shares of the tokens of the last minute. While requests wait, high priority goes first, and a tenant of twice the weight gets twice the tokens.</p>`}
  <//>`;
}
