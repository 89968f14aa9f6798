// @ts-check
/** The lines that a search of the output found; each opens the output there. */
import { html } from '../html.js';
import { bytes, count } from '../view/format.js';
import { marked, plain } from '../view/log_lines.js';
import { Trouble } from './basics.js';

/** @param {{found: any, wanted: string, onMore: () => void, onOpen: (offset: number) => void}} props */
export function Found({ found, wanted, onMore, onOpen }) {
  const { matches } = found;
  return html`<section class="found panel" aria-label="Lines found">
    <header><h2>${count(matches.length)} ${matches.length === 1 ? 'line' : 'lines'} with “${wanted}”${found.more ? ' so far' : ''}</h2>
      ${found.more && html`<button type="button" onClick=${onMore} disabled=${found.searching}>Search on from ${bytes(found.next)}</button>`}</header>
    <${Trouble} error=${found.error} />
    ${matches.length > 0 &&
    html`<ul>
      ${matches.map(
        (/** @type {any} */ match) => html`<li key=${match.offset}><button type="button" class="quiet mono" onClick=${() => onOpen(match.offset)}><span class="muted">${bytes(match.offset)}</span> ${marked(plain(match.line), wanted).map((each) => (each.hit ? html`<mark>${each.text}</mark>` : each.text))}</button></li>`,
      )}
    </ul>`}
  </section>`;
}
