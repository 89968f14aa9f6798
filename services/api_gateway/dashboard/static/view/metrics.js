// @ts-check
/** Pure: reads a histogram out of the Prometheus text format. */

/** The buckets of the series that have these labels, added up, by their upper bound.
 *  @param {string} text @param {string} name @param {Record<string, string>} labels */
export function buckets(text, name, labels) {
  /** @type {Map<number, number>} */
  const found = new Map();
  const prefix = `${name}_bucket{`;
  for (const line of text.split('\n')) {
    if (!line.startsWith(prefix)) continue;
    const end = line.lastIndexOf('}');
    const given = Object.fromEntries([...line.slice(prefix.length, end).matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map(([, key, value]) => [key, value.replace(/\\(.)/g, '$1')]));
    if (Object.entries(labels).some(([key, value]) => given[key] !== value)) continue;
    const le = given.le === '+Inf' ? Infinity : Number(given.le);
    found.set(le, (found.get(le) ?? 0) + Number(line.slice(end + 1)));
  }
  return [...found].map(([le, count]) => ({ le, count })).sort((a, b) => a.le - b.le);
}

/** The value below which this part lies, between the bounds of its bucket. @param {{le: number, count: number}[]} found @param {number} part */
export function quantile(found, part) {
  const total = found.at(-1)?.count ?? 0;
  const wanted = total * part;
  let low = { le: 0, count: 0 };
  for (const each of found) {
    if (each.count >= wanted) {
      if (!Number.isFinite(each.le)) return low.le;
      const inside = each.count - low.count;
      return inside > 0 ? low.le + ((each.le - low.le) * (wanted - low.count)) / inside : each.le;
    }
    low = each;
  }
  return low.le;
}
