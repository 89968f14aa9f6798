// @ts-check
/** A sentence in which the ids of jobs are links. */
import { href } from '../data/router.js';
import { html } from '../html.js';
import { pieces } from '../view/links.js';

/** `model`: its replicas are links too, to their output. @param {{text: string, model?: string}} props */
export function Linked({ text, model = '' }) {
  return pieces(text, model).map((piece) =>
    piece.job ? html`<a class="mono" href=${href(`/jobs/${encodeURIComponent(piece.job)}`, model ? { tab: 'logs' } : {})}>${piece.text}</a>` : piece.text,
  );
}
