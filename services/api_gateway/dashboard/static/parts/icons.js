// @ts-check
/** The pages' icons: outlines of 16 by 16 in the colour of the text. */
import { html } from '../html.js';

const PATHS = {
  fleet: 'M2 2h5v5H2zM9 2h5v5H9zM2 9h5v5H2zM9 9h5v5H9z',
  queue: 'M2 3h12M2 8h9M2 13h6',
  jobs: 'M3 2.5h10v11H3zM5.5 6h5M5.5 8.5h5M5.5 11h3',
  models: 'M8 1.8l5.4 3.1v6.2L8 14.2l-5.4-3.1V4.9zM2.6 4.9L8 8l5.4-3.1M8 8v6.2',
  nodes: 'M2 2.5h12v4H2zM2 9.5h12v4H2zM4.5 4.5h.01M4.5 11.5h.01',
  tenants: 'M5.5 7.5a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5zM1.5 13.5c0-2.6 1.7-4 4-4s4 1.4 4 4M10.5 3a2.3 2.3 0 0 1 0 4.4M11.5 9.7c1.9.4 3 1.7 3 3.8',
  audit: 'M8 1.5l5.5 2v4c0 3.4-2.2 5.8-5.5 7-3.3-1.2-5.5-3.6-5.5-7v-4zM5.5 8l2 2 3.2-3.6',
  submit: 'M8 3v10M3 8h10',
  sun: 'M8 11a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM8 1.2v1.6M8 13.2v1.6M1.2 8h1.6M13.2 8h1.6M3.2 3.2l1.1 1.1M11.7 11.7l1.1 1.1M12.8 3.2l-1.1 1.1M4.3 11.7l-1.1 1.1',
  moon: 'M13.5 9.6A5.8 5.8 0 0 1 6.4 2.5a5.8 5.8 0 1 0 7.1 7.1z',
  clock: 'M8 14.2A6.2 6.2 0 1 0 8 1.8a6.2 6.2 0 0 0 0 12.4zM8 4.5V8l2.4 1.6',
  copy: 'M5.5 5.5h8v8h-8zM10.5 5.5v-3h-8v8h3',
  done: 'M3 8.5l3.2 3.2L13 4.8',
  close: 'M3.5 3.5l9 9M12.5 3.5l-9 9',
  more: 'M3 8h.01M8 8h.01M13 8h.01',
  search: 'M7 12A5 5 0 1 0 7 2a5 5 0 0 0 0 10zM10.8 10.8L14 14',
  plus: 'M8 3.5v9M3.5 8h9',
  minus: 'M3.5 8h9',
  table: 'M2 3h12v10H2zM2 6.5h12M6.5 6.5V13',
  out: 'M9.5 4.5v-2h-7v11h7v-2M6.5 8h7.5M11.5 5.5L14 8l-2.5 2.5',
  open: 'M6 3.5L10.5 8 6 12.5',
  send: 'M2 8l12-5.5L10.5 14 8 9z',
};

/** @param {{name: string}} props */
export function Icon({ name }) {
  const d = PATHS[/** @type {keyof typeof PATHS} */ (name)];
  return html`<svg class="icon" viewBox="0 0 16 16" aria-hidden="true" focusable="false"><path d=${d} /></svg>`;
}
