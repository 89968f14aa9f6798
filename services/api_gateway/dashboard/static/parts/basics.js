// @ts-check
/** Small parts that every page uses: command lines, fields, notes, segmented choices, empty places. */
import { useState } from 'preact/hooks';
import { moment } from '../data/router.js';
import { html } from '../html.js';
import { Icon } from './icons.js';

const COPIED_MS = 1600;

/** @param {{text: string, label?: string}} props */
export function Copy({ text, label = 'Copy' }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    await copyText(text);
    setCopied(true);
    setTimeout(() => setCopied(false), COPIED_MS);
  };
  return html`<button type="button" class="quiet copy" aria-label=${copied ? 'Copied' : label} title=${copied ? 'Copied' : label} onClick=${copy}>
    <${Icon} name=${copied ? 'done' : 'copy'} />
  </button>`;
}

/** Without TLS browsers have no clipboard interface; a selected field serves. @param {string} text */
async function copyText(text) {
  if (navigator.clipboard && isSecureContext) {
    await navigator.clipboard.writeText(text);
    return;
  }
  const field = document.createElement('textarea');
  field.value = text;
  field.className = 'unseen';
  document.body.append(field);
  field.select();
  document.execCommand('copy');
  field.remove();
}

/** The command that does the same. @param {{line: string, label?: string}} props */
export function CommandLine({ line, label = 'The same in the command line' }) {
  return html`<div class="command" role="group" aria-label=${label}>
    <span class="prompt" aria-hidden="true">$</span><code tabindex="0">${line}</code><${Copy} text=${line} label="Copy the command" />
  </div>`;
}

/** The command at the end of a page. Lists have no past in the command line; the whole state has.
 * @param {{line: string}} props */
export function Foot({ line }) {
  return html`<div class="foot"><${CommandLine} line=${moment.value ? `muster state --at ${moment.value}` : line} /></div>`;
}

/** Names and values. @param {{rows: [string, any][]}} props */
export function Facts({ rows }) {
  const shown = rows.filter(([, value]) => value !== null && value !== undefined && value !== '' && value !== false);
  return html`<dl class="facts">
    ${shown.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}
  </dl>`;
}

/** @param {{error: Error|null|undefined, retry?: () => void}} props */
export function Trouble({ error, retry }) {
  if (!error) return null;
  return html`<div class="note bad" role="alert">
    <p>${error.message}</p>
    ${retry && html`<button type="button" onClick=${retry}>Try again</button>`}
  </div>`;
}

/** @param {{title: string, children?: any}} props */
export function Empty({ title, children }) {
  return html`<div class="empty"><p class="strong">${title}</p>${children && html`<div class="muted">${children}</div>`}</div>`;
}

/** @param {{lines?: number}} props */
export function Loading({ lines = 6 }) {
  return html`<div class="loading" role="status" aria-label="Loading">
    ${Array.from({ length: lines }, (_, i) => html`<i key=${i} style=${{ width: `${92 - ((i * 37) % 40)}%` }}></i>`)}
  </div>`;
}

/** One of a few choices. @param {{label: string, value: string, choices: [string, string][], onChange: (value: string) => void}} props */
export function Choice({ label, value, choices, onChange }) {
  return html`<div class="choice" role="group" aria-label=${label}>
    ${choices.map(
      ([name, text]) =>
        html`<button type="button" key=${name} aria-pressed=${value === name} onClick=${() => onChange(name)}>${text}</button>`,
    )}
  </div>`;
}

/** Tabs that are links, so that each has a URL. @param {{label: string, value: string, tabs: {name: string, text: any, url: string}[]}} props */
export function Tabs({ label, value, tabs }) {
  return html`<nav class="tabs" aria-label=${label}>
    ${tabs.map(
      (tab) => html`<a key=${tab.name} href=${tab.url} aria-current=${tab.name === value ? 'page' : undefined}>${tab.text}</a>`,
    )}
  </nav>`;
}

/** A field of a form with its label and help. @param {{label: string, help?: string, error?: string, children: any, wide?: boolean}} props */
export function Field({ label, help, error, children, wide }) {
  return html`<label class=${`field ${wide ? 'wide' : ''}`}>
    <span class="label">${label}</span>${children}
    ${error ? html`<span class="help bad-text" role="alert">${error}</span>` : help && html`<span class="help">${help}</span>`}
  </label>`;
}

/** @param {{title: any, actions?: any, children: any, class?: string, id?: string}} props */
export function Panel({ title, actions, children, class: name = '', id }) {
  return html`<section class=${`panel ${name}`} id=${id}>
    <header><h2>${title}</h2>${actions && html`<div class="actions">${actions}</div>`}</header>
    <div class="content">${children}</div>
  </section>`;
}
