// @ts-check
/** Pure: colours that stay apart for every kind of colour vision (after Okabe and Ito), and who
 * gets which. A state never shows by its colour alone: it has a shape and a word too. */

export const LIGHT = {
  series: ['#0072b2', '#e69f00', '#009e73', '#cc79a7', '#56b4e9', '#d55e00', '#7a5cc0', '#a3a100'],
  other: '#8a94a3',
  free: '#eef1f5',
  edge: '#c8d0da',
  text: '#1b2430',
  onSeries: ['#ffffff', '#1b1400', '#ffffff', '#22101a', '#06202e', '#ffffff', '#ffffff', '#1a1a00'],
  bad: '#c2410c',
  warn: '#a15c00',
  off: '#5d6877',
  good: '#0a7d5a',
  ring: '#0b57a4',
  ground: '#ffffff',
};

export const DARK = {
  series: ['#3d9be0', '#f0b429', '#22b890', '#dd93bb', '#7cc8f5', '#ef7d3a', '#a78bea', '#c9c53a'],
  other: '#77828f',
  free: '#1d242d',
  edge: '#36404c',
  text: '#e7ecf2',
  onSeries: ['#04121f', '#1b1400', '#03150f', '#22101a', '#06202e', '#200c00', '#120a26', '#1a1a00'],
  bad: '#ff7f50',
  warn: '#f2b34c',
  off: '#98a3b0',
  good: '#3ecf9c',
  ring: '#7cbcff',
  ground: '#151a21',
};

/** @param {boolean} dark */
export const palette = (dark) => (dark ? DARK : LIGHT);

/** Colours by name, given in the order in which names appear; beyond the last, `other`. */
export class Colours {
  constructor(/** @type {number} */ most = LIGHT.series.length) {
    this.most = most;
    /** @type {Map<string, number>} */
    this.places = new Map();
  }

  /** The place of a name in the series; -1 for `other`. @param {string} name */
  place(name) {
    const known = this.places.get(name);
    if (known !== undefined) return known;
    const next = this.places.size < this.most ? this.places.size : -1;
    if (next >= 0) this.places.set(name, next);
    return next;
  }
}

/** A place in the series that a text always gets, for things that are too many for an order. @param {string} text */
export function hashed(text, /** @type {number} */ most = LIGHT.series.length) {
  let hash = 2166136261;
  for (let i = 0; i < text.length; i += 1) hash = Math.imul(hash ^ text.charCodeAt(i), 16777619);
  return (hash >>> 0) % most;
}
