// @ts-check
/** Pure: what a role may see and do, as the gateway's table of roles says. The gateway decides; the
 * pages only leave out what it would refuse. */

/** @typedef {{tenant: string, user: string, role: string} | null} Principal */

/** @param {Principal} who */
export const operates = (who) => who !== null && ['operator', 'admin'].includes(who.role);
/** @param {Principal} who */
export const administers = (who) => who?.role === 'admin';
/** @param {Principal} who */
export const creates = (who) => who !== null && who.role !== 'viewer';

/** @param {Principal} who @param {{tenant: string, user: string}} thing */
export function changes(who, thing) {
  if (operates(who)) return true;
  return who?.role === 'member' && who.tenant === thing.tenant && who.user === thing.user;
}
