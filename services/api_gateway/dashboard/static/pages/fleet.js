// @ts-check
/** The fleet: every GPU of every node in one picture, coloured by who holds it or how it is. */
import { useEffect, useMemo, useState } from 'preact/hooks';
import { Fleet } from '../data/fleet.js';
import { changeQuery, go, href, moment, place } from '../data/router.js';
import { connection } from '../data/stream.js';
import { dark } from '../data/theme.js';
import { html } from '../html.js';
import { Choice, Empty, Loading, Trouble } from '../parts/basics.js';
import { tell } from '../parts/dialog.js';
import { FleetCanvas } from '../parts/fleet_canvas.js';
import { Chosen } from '../parts/fleet_chosen.js';
import { FleetTable } from '../parts/fleet_table.js';
import { Icon } from '../parts/icons.js';
import { Legend } from '../parts/fleet_legend.js';
import { Colours, palette } from '../view/colours.js';
import { condition, foundAt, holderName, legend, MODES, summary } from '../view/fleet_words.js';
import { counted } from '../view/format.js';

const colours = { tenant: new Colours(), job: new Colours(), health: new Colours(), model: new Colours() };
const COUNT_MS = 1000;

export default function FleetPage() {
  const { query } = place.value;
  const mode = MODES.includes(query.by) ? query.by : 'tenant';
  const [tries, setTries] = useState(0);
  const fleet = useMemo(() => new Fleet(), [moment.value, tries]);
  const again = () => setTries((before) => before + 1);
  const live = connection.value.state === 'live';
  useEffect(() => {
    if (live && fleet.state.value.error) again();
  }, [live]);
  const [counted_, setCounted] = useState({ rows: [], totals: { free: 0, total: 0, ok: 0, warn: 0, bad: 0, off: 0 } });
  const [over, setOver] = useState(/** @type {any} */ (null));
  const [zoom, setZoom] = useState(0);
  useEffect(() => fleet.begin(), [fleet]);
  useEffect(() => {
    let counting = 0;
    const count = () => {
      counting = 0;
      setCounted(/** @type {any} */ (legend(fleet.nodes, mode)));
    };
    const soon = () => {
      counting ||= setTimeout(count, COUNT_MS);
    };
    count();
    const unheard = fleet.version.subscribe(soon);
    const unshaped = fleet.shape.subscribe(() => count());
    return () => {
      clearTimeout(counting);
      unheard();
      unshaped();
    };
  }, [fleet, mode]);
  // The URL says which GPU is chosen, and nothing else does.
  const chosen = useMemo(() => {
    const found = query.node ? fleet.placeOf.get(query.node) : undefined;
    return found === undefined ? null : { node: found, gpu: Number(query.gpu) || 0 };
  }, [fleet, query.node, query.gpu, fleet.shape.value]);

  const { loading, error } = fleet.state.value;
  const empty = !fleet.nodes.length;
  const choose = (/** @type {{node: number, gpu: number}|null} */ to) => {
    changeQuery({ node: to ? fleet.nodes[to.node].id : undefined, gpu: to && to.gpu > 0 ? to.gpu : undefined });
  };
  const open = (/** @type {{node: number, gpu: number}} */ at) => {
    const node = fleet.nodes[at.node];
    const job = node.gpus[at.gpu]?.holders[0]?.job;
    go(href(job ? `/jobs/${job}` : `/nodes/${encodeURIComponent(node.id)}`));
  };
  const find = (/** @type {any} */ event) => {
    event.preventDefault();
    const found = foundAt(fleet.nodes, new FormData(event.target).get('find')?.toString() ?? '', chosen);
    if (found) choose(found);
    else tell('No node, job or user on the map has this name.');
  };
  const sick = counted_.totals.warn + counted_.totals.bad + counted_.totals.off;
  return html`<div class="page filled fleet">
    <div class="page-head">
      <h1>Fleet</h1>
      <span class="sub">${empty ? '' : `${counted(fleet.nodes.length, 'node')} · ${counted(counted_.totals.total, 'GPU')}${sick ? ` · ${sick} not healthy` : ''}`}</span>
      <div class="actions">
        <form role="search" onSubmit=${find}><input type="search" name="find" aria-label="Find a node, job or user; Enter goes to the next" placeholder="Node, job or user" /></form>
        <${Choice} label="Colour by" value=${mode} choices=${[['tenant', 'Tenant'], ['job', 'Job'], ['model', 'Model'], ['health', 'Health']]} onChange=${(/** @type {string} */ by) => changeQuery({ by, only: undefined })} />
        <span class="choice" role="group" aria-label="Size of the map">
          <button type="button" aria-label="Smaller" disabled=${query.view === 'table'} onClick=${() => setZoom(zoom - 1)}><${Icon} name="minus" /></button>
          <button type="button" aria-label="Larger" disabled=${query.view === 'table'} onClick=${() => setZoom(zoom + 1)}><${Icon} name="plus" /></button>
        </span>
        <${Choice} label="Show as" value=${query.view === 'table' ? 'table' : 'map'} choices=${[['map', 'Map'], ['table', 'Table']]} onChange=${(/** @type {string} */ view) => changeQuery({ view: view === 'table' ? view : undefined })} />
      </div>
    </div>
    <${Trouble} error=${error} retry=${again} />
    ${empty && loading && html`<${Loading} lines=${8} />`}
    ${empty && !loading && !error && html`<${NoNodes} />`}
    ${!empty &&
    html`<div class="fleet-body">
      ${query.view === 'table'
        ? html`<div class="panel fill"><div class="content"><${FleetTable} fleet=${fleet} /></div></div>`
        : html`<div class="panel map-panel">
            <${FleetCanvas}
              fleet=${fleet}
              mode=${mode}
              colours=${colours[/** @type {keyof typeof colours} */ (mode)]}
              only=${query.only ?? ''}
              zoom=${zoom}
              chosen=${chosen}
              label=${summary(fleet.nodes, counted_.totals)}
              onChoose=${choose}
              onOpen=${open}
              onHover=${(/** @type {any} */ at, /** @type {MouseEvent} */ event) => setOver(at ? { ...at, x: event.clientX, y: event.clientY } : null)}
            />
          </div>`}
      <aside class="fleet-side">
        ${chosen && fleet.nodes[chosen.node] && html`<${Chosen} fleet=${fleet} at=${chosen} version=${fleet.version.value} onClose=${() => choose(null)} />`}
        <${Legend} mode=${mode} found=${counted_} only=${query.only ?? ''} colours=${colours[/** @type {keyof typeof colours} */ (mode)]} ink=${palette(dark.value)} />
      </aside>
    </div>`}
    ${over && fleet.nodes[over.node] && html`<${Tip} fleet=${fleet} over=${over} />`}
  </div>`;
}

/** @param {{fleet: Fleet, over: any}} props */
function Tip({ fleet, over }) {
  const node = fleet.nodes[over.node];
  const gpu = node.gpus[over.gpu];
  const left = Math.min(over.x + 14, innerWidth - 290);
  const style = { left: `${left}px`, top: `${Math.min(over.y + 16, innerHeight - 130)}px` };
  if (!gpu) return html`<div class="tip" style=${style}><b>${node.id}</b><br />${node.state}</div>`;
  return html`<div class="tip" style=${style} aria-hidden="true">
    <b>${node.id}</b> · GPU ${gpu.index}<br />
    <span class="muted">${gpu.model} · ${condition(gpu, node.state) === 'ok' ? 'healthy' : gpu.state.toLowerCase()}</span>
    ${gpu.holders.map((/** @type {any} */ each) => html`<div>${holderName(each)} <span class="muted">${each.tenant ? `${each.tenant}/${each.user}` : ''} ${each.profile || `${each.share} %`}</span></div>`)}
    ${!gpu.holders.length && html`<div>free</div>`}
  </div>`;
}

function NoNodes() {
  return html`<div class="panel"><div class="content"><${Empty} title="No node has registered yet">
    <p>A machine joins with a token. On the machine that runs this cluster:</p>
    <div class="command"><code>muster join --help</code></div>
  <//></div></div>`;
}
