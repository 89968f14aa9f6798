// @ts-check
/** Pure: lists of nodes, and what an operator should know of one. */

/** @param {any} node */
export const nodeNote = (node) =>
  [node.distrusted, node.revoked, node.suspicion, node.reason, node.gpus_ignored ? `${node.gpus_ignored} GPUs ignored` : '']
    .filter(Boolean)
    .join(' · ');

const natural = new Intl.Collator('en', { numeric: true });

/** Rows by name, node-2 before node-10. @param {any[]} rows */
export const inOrder = (rows) => [...rows].sort((a, b) => natural.compare(a.id, b.id));

/** Rows with the changed ones in their places; new ones come last, where the list is complete.
 *  @param {any[]} rows @param {any[]} changed @param {boolean} complete @param {(node: any) => boolean} wanted */
export function byId(rows, changed, complete, wanted) {
  const news = new Map(changed.map((node) => [node.id, node]));
  const known = new Set(rows.map((node) => node.id));
  const kept = rows.map((node) => news.get(node.id) ?? node).filter(wanted);
  const added = complete ? changed.filter((node) => !known.has(node.id) && wanted(node)) : [];
  return inOrder([...kept, ...added]);
}
