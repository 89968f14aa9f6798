// @ts-check
/** The signed-in user. The session itself is a cookie that no script can read. */
import { signal } from '@preact/signals';
import { get, listeners, send } from './api.js';
import { go, place } from './router.js';
import { sentence } from '../view/format.js';

/** @typedef {{tenant: string, user: string, role: string, key_id: string}} Who */

/** Null until the gateway has answered. @type {import('@preact/signals').Signal<{signed_in: boolean, principal: Who|null, oidc: boolean, expires_at: string|null}|null>} */
export const session = signal(null);
/** The error of the last sign-in. */
export const failure = signal('');

/** @returns {Who|null} */
export const who = () => session.value?.principal ?? null;

listeners.refused = () => {
  if (session.value?.signed_in) session.value = { ...session.value, signed_in: false, principal: null };
};

/** The stream was refused: perhaps because the session has ended. */
listeners.lost = async () => {
  const found = await get('/v1/session').catch(() => null);
  if (found && !found.signed_in) session.value = found;
};

/** Read the session. A one-time link in the URL's fragment is used, and leaves the URL at once. */
export async function begin() {
  const link = new URLSearchParams(location.hash.slice(1)).get('link');
  if (link) {
    history.replaceState(null, '', location.pathname + location.search);
    if (await signIn({ link })) return;
  }
  try {
    session.value = await get('/v1/session');
  } catch (error) {
    failure.value = error instanceof Error ? error.message : String(error);
    setTimeout(begin, 2000);
  }
}

/** @param {{key?: string, link?: string}} proof */
export async function signIn(proof) {
  failure.value = '';
  try {
    session.value = await (await send('POST', '/v1/session', { body: proof })).json();
    return true;
  } catch (error) {
    failure.value = refusal(error, proof);
    return false;
  }
}

/** @param {any} error @param {{key?: string, link?: string}} proof */
function refusal(error, proof) {
  if (error?.status === 401 && proof.key) return 'This key is not accepted. Check it, or ask an administrator for a new one.';
  return sentence(error instanceof Error ? error.message : String(error));
}

export async function signOut() {
  await send('DELETE', '/v1/session');
  location.assign('/sign-in');
}

/** Where to go after the sign-in: a page of this origin. */
export function next() {
  const wanted = place.value.query.next ?? '/';
  const { origin, pathname, search } = new URL(URL.canParse(wanted, location.origin) ? wanted : '/', location.origin);
  return origin === location.origin && pathname !== '/sign-in' ? pathname + search : '/';
}

export const welcome = () => go(next(), { replace: true });
