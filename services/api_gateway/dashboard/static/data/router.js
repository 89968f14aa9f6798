// @ts-check
/** Every view is a URL: the path, its parameters and its query. `at` stays while one moves between
 * pages, so that all of them show the same past moment. */
import { computed, signal } from '@preact/signals';

const PAGES = [
  ['fleet', /^\/$/],
  ['queue', /^\/queue$/],
  ['jobs', /^\/jobs$/],
  ['job', /^\/jobs\/([^/]+)$/],
  ['submit', /^\/submit$/],
  ['models', /^\/models$/],
  ['model', /^\/models\/([^/]+)$/],
  ['deploy', /^\/deploy$/],
  ['tenants', /^\/tenants$/],
  ['tenant', /^\/tenants\/([^/]+)$/],
  ['audit', /^\/audit$/],
  ['nodes', /^\/nodes$/],
  ['node', /^\/nodes\/([^/]+)$/],
  ['sign-in', /^\/sign-in$/],
];

/** The page of a path, and the name in it. @param {string} path */
export function pageOf(path) {
  for (const [page, pattern] of PAGES) {
    const found = /** @type {RegExp} */ (pattern).exec(path);
    if (found) return { page: String(page), name: found[1] ? decoded(found[1]) : '' };
  }
  return { page: 'missing', name: path };
}

/** @param {string} text */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

const read = () => ({
  ...pageOf(location.pathname),
  path: location.pathname,
  query: /** @type {Record<string, string>} */ (Object.fromEntries(new URLSearchParams(location.search))),
});

export const place = signal(read());
/** The commit that the pages show; 0 is now. */
export const moment = computed(() => Number(place.value.query.at) || 0);

/** A URL of the dashboard, at the moment that is shown now. @param {string} path
 *  @param {Record<string, string|number|undefined>} query */
export function href(path, query = {}) {
  const given = Object.entries({ at: place.value.query.at, ...query });
  const kept = given.filter(([, value]) => value !== undefined && value !== '');
  const text = new URLSearchParams(kept.map(([name, value]) => [name, String(value)])).toString();
  return text ? `${path}?${text}` : path;
}

/** @param {string} url */
export function go(url, { replace = false } = {}) {
  if (replace) history.replaceState(null, '', url);
  else history.pushState(null, '', url);
  place.value = read();
}

/** Change the query of the page that is shown. @param {Record<string, string|number|undefined>} changes */
export function changeQuery(changes, { replace = true } = {}) {
  const { path, query } = place.value;
  go(href(path, { ...query, ...changes }), { replace });
}

/** Follow links inside the dashboard without loading the page again. */
export function listen() {
  addEventListener('popstate', () => {
    place.value = read();
  });
  document.addEventListener('click', (event) => {
    if (event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    const link = event.target instanceof Element ? event.target.closest('a[href]') : null;
    if (!(link instanceof HTMLAnchorElement) || link.target || link.origin !== location.origin) return;
    if (pageOf(link.pathname).page === 'missing') return;
    event.preventDefault();
    go(link.pathname + link.search);
    document.getElementById('main')?.focus({ preventScroll: true });
  });
}
