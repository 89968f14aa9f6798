// @ts-check
/** The fleet map: one canvas of the size of its window, over a space as high as the whole fleet.
 * It is drawn at most once a frame, and after a change only the nodes that changed. */
import { useEffect, useLayoutEffect, useRef } from 'preact/hooks';
import { dark } from '../data/theme.js';
import { html } from '../html.js';
import { palette } from '../view/colours.js';
import { corner, fitted, hit, moved, shownRows } from '../view/fleet_layout.js';
import { paintChosen, paintNode } from '../view/fleet_painter.js';
import { sentence } from '../view/fleet_words.js';

/** How many frames were drawn, and how long the longest took: `make bench NAME=dashboard` reads them. */
export const drawn = { frames: 0, longestMs: 0, nodes: 0 };

class Map {
  /** @param {HTMLDivElement} pane @param {HTMLCanvasElement} canvas @param {HTMLDivElement} space */
  constructor(pane, canvas, space) {
    this.pane = pane;
    this.canvas = canvas;
    this.space = space;
    this.draw = /** @type {CanvasRenderingContext2D} */ (canvas.getContext('2d', { alpha: true }));
    this.frame = 0;
    this.whole = true;
    /** The window, read when it changes: a read while the page changes would lay it out at once. */
    this.top = 0;
    this.wide = 0;
    this.high = 0;
    /** @type {any} */
    this.props = null;
    /** @type {import('../view/fleet_layout.js').Layout|null} */
    this.at = null;
  }

  /** @param {any} props */
  show(props) {
    this.props = props;
    this.fit();
    this.ask(true);
  }

  /** Read the size of the window. */
  measure() {
    this.wide = this.pane.clientWidth;
    this.high = this.pane.clientHeight;
    this.top = this.pane.scrollTop;
  }

  scrolled() {
    this.top = this.pane.scrollTop;
    this.ask(true);
  }

  fit() {
    const { fleet, zoom } = this.props;
    const { wide: width, high: height } = this;
    const most = fleet.nodes.reduce((/** @type {number} */ top, /** @type {any} */ node) => Math.max(top, node.gpus.length), 1);
    this.at = fitted(fleet.nodes.length, most, width, height, zoom);
    const ratio = devicePixelRatio || 1;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    this.space.style.height = `${Math.max(0, this.at.tall - height)}px`;
    this.draw.setTransform(ratio, 0, 0, ratio, 0, 0);
  }

  /** @param {boolean} whole */
  ask(whole) {
    this.whole ||= whole;
    if (!this.frame) this.frame = requestAnimationFrame(() => this.paint());
  }

  paint() {
    const from = performance.now();
    this.frame = 0;
    const { fleet, mode, colours, only, chosen } = this.props;
    const at = /** @type {import('../view/fleet_layout.js').Layout} */ (this.at);
    const style = { mode, colours, only, ink: palette(dark.value) };
    const { top, high } = this;
    const { first, last } = shownRows(at, top, high);
    const begin = first * at.perRow;
    const end = Math.min(fleet.nodes.length, (last + 1) * at.perRow);
    if (this.whole) {
      this.draw.clearRect(0, 0, this.canvas.width, this.canvas.height);
      for (let i = begin; i < end; i += 1) paintNode(this.draw, fleet.nodes[i], i, at, top, style);
      drawn.nodes += end - begin;
    } else {
      for (const i of fleet.dirty) if (i >= begin && i < end) paintNode(this.draw, fleet.nodes[i], i, at, top, style);
      drawn.nodes += fleet.dirty.size;
    }
    fleet.dirty.clear();
    this.whole = false;
    if (chosen && chosen.node < fleet.nodes.length) paintChosen(this.draw, chosen, at, top, style.ink);
    drawn.frames += 1;
    drawn.longestMs = Math.max(drawn.longestMs, performance.now() - from);
  }

  /** @param {MouseEvent} event */
  under(event) {
    const box = this.canvas.getBoundingClientRect();
    const at = /** @type {import('../view/fleet_layout.js').Layout} */ (this.at);
    const found = hit(at, event.clientX - box.left, event.clientY - box.top + this.pane.scrollTop, this.props.fleet.nodes.length);
    if (!found) return null;
    return found.gpu < this.props.fleet.nodes[found.node].gpus.length ? found : null;
  }

  /** Scroll so that a node is in the window. @param {number} node */
  reveal(node) {
    const at = /** @type {import('../view/fleet_layout.js').Layout} */ (this.at);
    const { y } = corner(at, node);
    if (y < this.pane.scrollTop) this.pane.scrollTop = y - 4;
    const below = y + at.blockHigh + 6 - this.pane.clientHeight;
    if (below > this.pane.scrollTop) this.pane.scrollTop = below;
  }
}

/** @param {any} props fleet, mode, colours, only, zoom, chosen, label; onChoose, onOpen, onHover */
export function FleetCanvas(props) {
  const pane = useRef(/** @type {any} */ (null));
  const canvas = useRef(/** @type {any} */ (null));
  const space = useRef(/** @type {any} */ (null));
  const map = useRef(/** @type {Map|null} */ (null));
  const { fleet, chosen } = props;
  // Keys may come faster than the page is drawn.
  const cursor = useRef(chosen);
  cursor.current = chosen;

  useLayoutEffect(() => {
    const made = new Map(pane.current, canvas.current, space.current);
    map.current = made;
    made.measure();
    made.show(props);
    const resized = new ResizeObserver(() => {
      made.measure();
      made.show(made.props);
    });
    resized.observe(pane.current);
    const unshaped = fleet.shape.subscribe(() => made.show(made.props));
    const unheard = fleet.version.subscribe(() => made.ask(false));
    return () => {
      resized.disconnect();
      unshaped();
      unheard();
      cancelAnimationFrame(made.frame);
    };
  }, [fleet]);

  const theme = dark.value;
  useEffect(() => {
    if (chosen && map.current?.at) map.current.reveal(chosen.node);
  }, [chosen]);
  useEffect(() => map.current?.show(props), [props.mode, props.only, props.zoom, props.chosen, theme]);

  const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
    const made = map.current;
    if (!made?.at || !fleet.nodes.length) return;
    const at = cursor.current;
    if (event.key === 'Enter' && at) props.onOpen(at);
    if (event.key === 'Escape' && at) props.onChoose(null);
    const sizes = fleet.nodes.map((/** @type {any} */ node) => node.gpus.length);
    const next = moved(made.at, at ?? { node: 0, gpu: -1 }, event.key, sizes);
    if (!next) return;
    event.preventDefault();
    cursor.current = next;
    props.onChoose(next);
    made.reveal(next.node);
  };
  const node = chosen && fleet.nodes[chosen.node];
  const gpu = node?.gpus[Math.max(0, chosen.gpu)];
  return html`<div class="map" ref=${pane} onScroll=${() => map.current?.scrolled()}>
    <canvas
      ref=${canvas}
      tabindex="0"
      role="application"
      aria-roledescription="map of GPUs"
      aria-label=${`${props.label}. Arrow keys choose a GPU, Enter opens what it runs.`}
      onKeyDown=${onKeyDown}
      onMouseMove=${(/** @type {MouseEvent} */ event) => props.onHover(map.current?.under(event), event)}
      onMouseLeave=${() => props.onHover(null)}
      onClick=${(/** @type {MouseEvent} */ event) => props.onChoose(map.current?.under(event) ?? null)}
      onDblClick=${(/** @type {MouseEvent} */ event) => {
        const found = map.current?.under(event);
        if (found) props.onOpen(found);
      }}
    ></canvas>
    <div ref=${space} aria-hidden="true"></div>
    <div class="unseen" role="status">${gpu ? sentence(node, gpu) : ''}</div>
  </div>`;
}
