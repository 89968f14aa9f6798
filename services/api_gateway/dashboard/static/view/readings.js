// @ts-check
/** Pure: readings of devices as lines of a chart and as rows. */
import { bytes, decimal } from './format.js';

/** More lines than this are shown as the highest, the mean and the lowest. */
const LINES_MAX = 8;

/** @param {{times: number[], lines: Map<string, any[]>}} trail @param {(device: any) => number|null} of
 *  @returns {{name: string, values: (number|null)[]}[]} */
export function lines(trail, of) {
  const all = [...trail.lines].map(([uuid, line]) => ({ name: uuid, values: line.map((each) => (each ? of(each) : null)) }));
  const known = all.filter((line) => line.values.some((value) => value !== null));
  if (known.length <= LINES_MAX) return known.map((line, place) => ({ ...line, name: `GPU ${place}` }));
  const over = (/** @type {(values: number[]) => number} */ fold) =>
    trail.times.map((_, at) => {
      const values = known.map((line) => line.values[at]).filter((value) => value !== null);
      return values.length ? fold(/** @type {number[]} */ (values)) : null;
    });
  return [
    { name: 'highest', values: over((values) => Math.max(...values)) },
    { name: 'mean', values: over((values) => values.reduce((sum, each) => sum + each, 0) / values.length) },
    { name: 'lowest', values: over((values) => Math.min(...values)) },
  ];
}

/** @param {any} each */
export function device(each) {
  const known = (/** @type {number|null} */ value, /** @type {(value: number) => string} */ show) => (value === null ? '–' : show(value));
  return {
    uuid: each.uuid,
    busy: known(each.busy_percent, (value) => `${value} %`),
    power: known(each.power_mw, (value) => `${decimal(value / 1000)} W`),
    memory: known(each.memory_used_bytes, bytes),
    temperature: known(each.temperature_c, (value) => `${value} °C`),
  };
}
