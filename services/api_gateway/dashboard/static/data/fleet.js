// @ts-check
/** The rows of the fleet map: read once, then kept up to date by the stream. A change marks its
 * node, so that the map draws only what changed. */
import { signal } from '@preact/signals';
import { getThen } from './api.js';
import { moment } from './router.js';
import { noteSeq, subscribe } from './stream.js';

const PAGE = 400;
const natural = new Intl.Collator('en', { numeric: true });

export class Fleet {
  constructor() {
    /** @type {any[]} */
    this.nodes = [];
    /** @type {Map<string, number>} */
    this.placeOf = new Map();
    /** Places of nodes that changed since the map was drawn. @type {Set<number>} */
    this.dirty = new Set();
    /** Changes with every change; `shape` only when nodes come or go. */
    this.version = signal(0);
    this.shape = signal(0);
    this.state = signal(/** @type {{loading: boolean, error: Error|null}} */ ({ loading: true, error: null }));
    this.seq = 0;
  }

  /** Read all pages, then follow. Returns the function that ends it. */
  begin() {
    const ended = new AbortController();
    let leave = () => {};
    const read = () => this.read(ended.signal);
    read().then(() => {
      if (ended.signal.aborted || moment.value || this.state.value.error) return;
      const hear = (/** @type {string} */ event, /** @type {any} */ data) => this.hear(event, data);
      leave = subscribe('fleet', { after: this.seq, hear, poll: read });
    });
    return () => {
      ended.abort();
      leave();
    };
  }

  /** @param {AbortSignal} signal */
  async read(signal) {
    let after = '';
    /** @type {any[]} */
    const rows = [];
    try {
      do {
        const page = await getThen('/v1/fleet', { limit: PAGE, after }, signal);
        rows.push(...page.nodes);
        this.seq = after ? Math.min(this.seq, page.seq) : page.seq;
        after = page.next ?? '';
        noteSeq(moment.value ? 0 : this.seq);
        this.replace(rows);
      } while (after);
      this.state.value = { loading: false, error: null };
    } catch (error) {
      if (!signal.aborted) this.state.value = { loading: false, error: /** @type {Error} */ (error) };
    }
  }

  /** @param {any[]} rows */
  replace(rows) {
    this.nodes = [...rows].sort((a, b) => natural.compare(a.id, b.id));
    this.placeOf = new Map(this.nodes.map((node, place) => [node.id, place]));
    this.dirty.clear();
    this.shape.value += 1;
    this.version.value += 1;
  }

  /** @param {string} event @param {any} data */
  hear(event, data) {
    const rows = Array.isArray(data?.nodes) ? data.nodes : data?.id ? [data] : [];
    for (const row of rows) this.change(row);
    if (rows.length) this.version.value += 1;
  }

  /** @param {any} row */
  change(row) {
    const place = this.placeOf.get(row.id);
    const gone = row.state === 'removed' || row.gone;
    if (place === undefined || gone || this.nodes[place].gpus.length !== row.gpus.length) {
      const others = this.nodes.filter((node) => node.id !== row.id);
      this.replace(gone ? others : [...others, row]);
      return;
    }
    this.nodes[place] = row;
    this.dirty.add(place);
  }
}
