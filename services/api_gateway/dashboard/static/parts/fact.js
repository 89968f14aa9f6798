// @ts-check
/** One fact of the log: its summary, and on demand all of it. */
import { useState } from 'preact/hooks';
import { html } from '../html.js';

/** @param {{fact: any}} props */
export function Fact({ fact }) {
  const [open, setOpen] = useState(false);
  return html`<div class="fact">
    <button type="button" class="quiet" aria-expanded=${open} onClick=${() => setOpen(!open)}><span class="kind mono">${fact.kind}</span> <span class="words">${fact.summary}</span></button>
    ${open && html`<pre class="mono" tabindex="0">${JSON.stringify(fact.fact, null, 2)}</pre><p class="muted">written by ${fact.writer}, commit ${fact.seq}</p>`}
  </div>`;
}
