// @ts-check
/** The actions of an operator on a node. */
import { change, segment } from '../data/api.js';
import { who } from '../data/session.js';
import { html } from '../html.js';
import * as lines from '../view/command_lines.js';
import { counted } from '../view/format.js';
import { operates } from '../view/rights.js';
import { Action } from './dialog.js';

/** `service` is known where the devices are. @param {{node: any, service?: string, small?: boolean}} props */
export function NodeActions({ node, service, small }) {
  if (!operates(who()) || node.state === 'removed') return null;
  const set = (/** @type {string} */ wanted, /** @type {any} */ more = {}) => () => change('PUT', `/v1/nodes/${segment(node.id)}/service`, { service: wanted, ...more });
  const jobs = node.job_ids.length;
  return html`
    ${service !== 'draining' && html`<${Action} title=${`Drain ${node.id}?`} text=${`It takes no new jobs. ${jobs ? `${counted(jobs, 'job')} on it ${jobs === 1 ? 'continues' : 'continue'}.` : 'No job is on it.'}`} line=${lines.drain(node.id)} label="Drain" run=${set('draining')} done=${`${node.id} is being drained.`} />`}
    ${service !== 'online' && html`<${Action} title=${`Return ${node.id} to service?`} text="New jobs may be placed on it. An unhealthy GPU takes none until it has recovered." line=${lines.online(node.id)} label="Online" run=${set('online')} done=${`${node.id} is back in service.`} />`}
    ${!small && service !== 'offline' && html`<${Action} title=${`Take ${node.id} out of service?`} text=${jobs ? `${counted(jobs, 'job')} on it will be stopped and queued again.` : 'It takes no jobs until it is online again.'} line=${lines.offline(node.id, jobs > 0)} label="Offline" danger=${jobs > 0} run=${set('offline', jobs ? { force: true } : {})} done=${`${node.id} is out of service.`} />`}
    ${!small && node.state === 'unreachable' && html`<${Action} title=${`Declare ${node.id} dead?`} text="Only do this if the machine is switched off: its jobs may start elsewhere at once." line=${lines.dead(node.id)} label="Declare dead" danger=${true} run=${() => change('POST', `/v1/nodes/${segment(node.id)}/dead`, {})} done=${`${node.id} is declared dead.`} />`}
  `;
}
