// @ts-check
/** The lines of some GPUs: how busy they are and what power they draw, where the devices report it. */
import { useReadings } from '../data/readings.js';
import { html } from '../html.js';
import { hasEnded } from '../view/jobs.js';
import { device, lines } from '../view/readings.js';
import { Panel } from './basics.js';
import { Chart } from './chart.js';

/** @param {{job: any}} props */
export function JobLines({ job }) {
  const live = !hasEnded(job) && job.state !== 'queued';
  const uuids = live ? job.members.flatMap((/** @type {any} */ member) => member.gpus.map((/** @type {any} */ gpu) => gpu.uuid)) : [];
  const nodes = uuids.length ? [...new Set(job.node_ids)] : [];
  return html`<${Lines} nodes=${nodes} uuids=${uuids} />`;
}

/** @param {{nodes: string[], uuids: string[]|null}} props */
export function Lines({ nodes, uuids }) {
  const trail = useReadings(nodes, uuids);
  const busy = lines(trail, (each) => each.busy_percent);
  const power = lines(trail, (each) => (each.power_mw === null ? null : each.power_mw / 1000));
  if (!busy.length && !power.length) return null;
  return html`<${Panel} title="GPUs">
    <div class="charts">
      ${busy.length > 0 && html`<${Chart} label="Busy" unit="%" top=${100} series=${busy} times=${trail.times} version=${trail.version} />`}
      ${power.length > 0 && html`<${Chart} label="Power" unit="W" series=${power} times=${trail.times} version=${trail.version} />`}
    </div>
    <details>
      <summary>Readings as a table</summary>
      <table class="plain"><thead><tr><th scope="col">GPU</th><th scope="col" class="right">Busy</th><th scope="col" class="right">Power</th><th scope="col" class="right">Memory</th><th scope="col" class="right">Temperature</th></tr></thead>
        <tbody>${[...trail.latest.values()].map((each) => device(each)).map((row) => html`<tr key=${row.uuid}><td class="mono">${row.uuid}</td><td class="right">${row.busy}</td><td class="right">${row.power}</td><td class="right">${row.memory}</td><td class="right">${row.temperature}</td></tr>`)}</tbody></table>
    </details>
    <p class="muted">Since this page was opened${[...trail.latest.values()].some((each) => each.simulated) ? '; simulated devices report what their processes use' : ''}.</p>
  <//>`;
}
