// @ts-check
/** Reading for pages: one thing, or a list by pages, at the moment that is shown, and followed by the
 * stream while that is now. */
import { useEffect, useRef, useState } from 'preact/hooks';
import { get, getThen } from './api.js';
import { moment } from './router.js';
import { connection, noteSeq, subscribe } from './stream.js';

/** Changes that come fast are shown together. */
const TOGETHER_MS = 250;
/** A list that is read again as a whole is so at most this often. */
const REREAD_MS = 5000;
/** Rows that a list keeps; one that is longer is read again from where the reader is. */
const ROWS_MAX = 20_000;

/** Counts the times at which something that could not be read is read anew: when the gateway answers again.
 *  @param {Error|null} error @returns {number} */
function useTries(error) {
  const [tries, setTries] = useState(0);
  const live = connection.value.state === 'live';
  useEffect(() => {
    if (live && error) setTries((before) => before + 1);
  }, [live]);
  return tries;
}

/**
 * @param {string|null} path null reads nothing
 * @param {Record<string, any>} query
 * @param {{topic?: string, filter?: Record<string, any>, apply?: (data: any, event: string, news: any) => any, every?: number, present?: boolean}} live
 *   `present`: of this moment always. `apply` returns the new answer; without it the answer is read again after a change. `every`: also
 *   read again after so many milliseconds, for what no fact tells of.
 */
export function useAnswer(path, query = {}, live = {}) {
  const at = moment.value;
  const key = JSON.stringify([path, query, at]);
  const [state, setState] = useState(/** @type {{data: any, error: Error|null, loading: boolean, key: string}} */ ({ data: null, error: null, loading: true, key }));
  const read = useRef(async () => {});
  const tries = useTries(state.error);

  useEffect(() => {
    if (path === null) return undefined;
    const ended = new AbortController();
    /** @type {ReturnType<typeof setTimeout>|undefined} */
    let waiting;
    let leave = () => {};
    let current = /** @type {any} */ (null);
    const show = (/** @type {any} */ data) => {
      current = data;
      setState({ data, error: null, loading: false, key });
    };
    read.current = async () => {
      try {
        const data = await (live.present ? get : getThen)(path, query, ended.signal);
        noteSeq(at ? 0 : (data.seq ?? 0));
        show(data);
      } catch (error) {
        if (!ended.signal.aborted) setState({ data: current, error: /** @type {Error} */ (error), loading: false, key });
      }
    };
    const soon = () => {
      waiting ??= setTimeout(async () => {
        await read.current();
        waiting = undefined;
      }, TOGETHER_MS);
    };
    const hear = (/** @type {string} */ event, /** @type {any} */ data) => {
      // What was read before without a sequence may have changed before the stream began.
      if (event === 'ready' && current && !current.seq) soon();
      if (event === 'ready' || event === 'error') return;
      if (current && live.apply) show(live.apply(current, event, data));
      else soon();
    };
    const timer = live.every && !at ? setInterval(() => !document.hidden && soon(), live.every) : undefined;
    setState((old) => ({ ...old, loading: true, error: null, data: old.key === key ? old.data : null, key }));
    read.current().then(() => {
      if (ended.signal.aborted || at || !live.topic) return;
      leave = subscribe(live.topic, { filter: live.filter, after: current?.seq ?? null, hear, poll: read.current });
    });
    return () => {
      ended.abort();
      clearInterval(timer);
      clearTimeout(waiting);
      leave();
    };
  }, [key, tries]);
  return { ...state, loading: state.loading || state.key !== key, again: () => read.current() };
}

/**
 * A list that is read by pages as the reader comes to its end.
 * @param {string} path @param {string} name the list's name in the answer @param {Record<string, any>} query
 * @param {{topic?: string, filter?: Record<string, any>, merge?: (rows: any[], changed: any[], complete: boolean) => any[], reread?: boolean}} live
 */
export function useList(path, name, query = {}, live = {}) {
  const at = moment.value;
  const key = JSON.stringify([path, query, at]);
  const blank = { rows: /** @type {any[]} */ ([]), next: /** @type {any} */ (null), error: /** @type {Error|null} */ (null), loading: true, seq: 0, key };
  const [state, setState] = useState(blank);
  const held = useRef(blank);
  const more = useRef(() => {});
  const again = useRef(async () => {});
  const tries = useTries(state.error);

  useEffect(() => {
    const ended = new AbortController();
    /** @type {Map<string, any>} */
    const changed = new Map();
    /** @type {ReturnType<typeof setTimeout>|undefined} */
    let waiting;
    let leave = () => {};
    const show = (/** @type {any} */ changes) => {
      if (ended.signal.aborted) return;
      held.current = { ...held.current, ...changes, key };
      setState(held.current);
    };
    const page = async (/** @type {any} */ after) => {
      show({ loading: true, error: null });
      try {
        const answer = await getThen(path, { ...query, after }, ended.signal);
        noteSeq(at ? 0 : (answer.seq ?? 0));
        const rows = after === undefined ? answer[name] : [...held.current.rows, ...answer[name]];
        show({ rows, next: rows.length < ROWS_MAX ? (answer.next ?? null) : null, loading: false, seq: held.current.seq || answer.seq });
      } catch (error) {
        if (!ended.signal.aborted) show({ error, loading: false });
      }
    };
    held.current = { ...blank, rows: held.current.key === key ? held.current.rows : [] };
    again.current = () => page(undefined);
    more.current = () => {
      if (!held.current.loading && held.current.next !== null && !held.current.error) page(held.current.next);
    };
    const hear = (/** @type {string} */ event, /** @type {any} */ data) => {
      if (event === 'ready' || event === 'error' || (!live.reread && (!live.merge || !data?.id))) return;
      if (data?.id) changed.set(data.id, data);
      waiting ??= setTimeout(() => {
        waiting = undefined;
        if (live.reread) return again.current();
        const rows = live.merge?.(held.current.rows, [...changed.values()], held.current.next === null);
        changed.clear();
        return show({ rows });
      }, live.reread ? REREAD_MS : TOGETHER_MS);
    };
    page(undefined).then(() => {
      if (ended.signal.aborted || at || !live.topic || held.current.error) return;
      leave = subscribe(live.topic, { filter: live.filter, after: held.current.seq, hear, poll: again.current });
    });
    return () => {
      ended.abort();
      clearTimeout(waiting);
      leave();
    };
  }, [key, tries]);
  const same = state.key === key;
  return { ...state, rows: same ? state.rows : [], loading: state.loading || !same, more: () => more.current(), again: () => again.current() };
}
