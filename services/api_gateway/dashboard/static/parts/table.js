// @ts-check
/** A table of any length: only the rows in the window are in the document. Rows have one height.
 * The whole is a real table, so that screen readers know rows and columns. */
import { useEffect, useRef, useState } from 'preact/hooks';
import { size } from '../data/clock.js';
import { go } from '../data/router.js';
import { html } from '../html.js';

const ROW = 34;
const SPARE = 8;
const NEAR = 600;
const ORDER = ['small', 'medium', 'large'];

/** The rows that a window shows. @param {number} top @param {number} height @param {number} rows */
export function windowOf(top, height, rows) {
  const first = Math.max(0, Math.floor(top / ROW) - SPARE);
  const last = Math.min(rows, Math.ceil((top + height) / ROW) + SPARE);
  return { first, last };
}

/**
 * @param {{label: string, rows: any[], columns: {name: string, title: any, cell: (row: any) => any,
 *   width?: string, right?: boolean, from?: string, mono?: boolean}[], keyOf: (row: any) => string,
 *   urlOf?: (row: any) => string, total?: number|null, onEnd?: () => void, loading?: boolean,
 *   opened?: string, detail?: (row: any) => any, empty?: any, onRow?: (row: any) => void}} props
 */
export function Table(props) {
  const { label, rows, keyOf, urlOf, onEnd, onRow } = props;
  const pane = useRef(/** @type {HTMLDivElement|null} */ (null));
  const [view, setView] = useState({ top: 0, height: 800 });
  const columns = props.columns.filter((column) => ORDER.indexOf(column.from ?? 'small') <= ORDER.indexOf(size.value));

  const look = () => {
    const element = pane.current;
    if (!element) return;
    setView({ top: element.scrollTop, height: element.clientHeight });
    if (onEnd && element.scrollHeight - element.scrollTop - element.clientHeight < NEAR) onEnd();
  };
  useEffect(() => {
    look();
    const resized = new ResizeObserver(look);
    if (pane.current) resized.observe(pane.current);
    return () => resized.disconnect();
  }, [rows.length]);

  const { first, last } = windowOf(view.top, view.height, rows.length);
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
    if (event.key !== 'ArrowDown' && event.key !== 'ArrowUp') return;
    const row = event.target instanceof Element ? event.target.closest('tr') : null;
    const next = event.key === 'ArrowDown' ? row?.nextElementSibling : row?.previousElementSibling;
    const link = next?.querySelector('a, button');
    if (link instanceof HTMLElement) {
      event.preventDefault();
      link.focus();
    }
  };
  if (!rows.length && !props.loading) return props.empty ?? null;
  return html`<div class="table" ref=${pane} onScroll=${look} tabindex="0" role="region" aria-label=${label}>
    <table aria-rowcount=${(props.total ?? rows.length) + 1}>
      <colgroup>
        ${columns.map((column) => html`<col key=${column.name} style=${{ width: column.width ?? 'auto' }} />`)}
      </colgroup>
      <thead>
        <tr>
          ${columns.map((column) => html`<th key=${column.name} scope="col" class=${column.right ? 'right' : ''}>${column.title}</th>`)}
        </tr>
      </thead>
      <tbody onKeyDown=${onKeyDown}>
        ${first > 0 && html`<tr key="above" aria-hidden="true" class="space"><td colspan=${columns.length} style=${{ height: `${first * ROW}px` }}></td></tr>`}
        ${rows.slice(first, last).map((row, place) => {
          const key = keyOf(row);
          const open = props.opened === key;
          const act = onRow ?? (urlOf && (() => go(urlOf(row))));
          return [
            html`<tr
              key=${key}
              aria-rowindex=${first + place + 2}
              class=${`${act ? 'link' : ''} ${open ? 'opened' : ''}`}
              onClick=${(/** @type {MouseEvent} */ event) => {
                if (!act || (event.target instanceof Element && event.target.closest('a, button, input'))) return;
                if (getSelection()?.toString()) return;
                act(row);
              }}
            >
              ${columns.map(
                (column) =>
                  html`<td key=${column.name} class=${`${column.right ? 'right' : ''} ${column.mono ? 'mono' : ''}`}>${column.cell(row)}</td>`,
              )}
            </tr>`,
            open && props.detail && html`<tr key=${`${key}+`} class="detail"><td colspan=${columns.length}>${props.detail(row)}</td></tr>`,
          ];
        })}
        ${last < rows.length &&
        html`<tr key="below" aria-hidden="true" class="space"><td colspan=${columns.length} style=${{ height: `${(rows.length - last) * ROW}px` }}></td></tr>`}
      </tbody>
    </table>
    ${props.loading && html`<p class="more muted" role="status">Loading…</p>`}
  </div>`;
}
