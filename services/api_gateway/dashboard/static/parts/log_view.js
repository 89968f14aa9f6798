// @ts-check
/** A job's output: any part of any length, followed while the job runs, searched in the gateway. */
import { useEffect, useRef, useState } from 'preact/hooks';
import { CHUNK, readRange, search } from '../data/output.js';
import { changeQuery, moment } from '../data/router.js';
import { POLL_MS, subscribe } from '../data/stream.js';
import { html } from '../html.js';
import * as commands from '../view/command_lines.js';
import { bytes as size, count } from '../view/format.js';
import { hasEnded, note } from '../view/jobs.js';
import { LogText, marked } from '../view/log_lines.js';
import { Choice, CommandLine, Trouble } from './basics.js';
import { Found } from './log_found.js';

const LINE = 18;
const SPARE = 20;
const NEAR_END = 40;

/** @param {{job: any, query: Record<string, string>}} props */
export function LogView({ job, query }) {
  const part = { job: job.id, stream: query.stream === 'stderr' ? 'stderr' : 'stdout', rank: Number(query.rank) || 0, attempt: Number(query.attempt) || job.attempt || 0 };
  const [follow, setFollow] = useState(!hasEnded(job));
  const [found, setFound] = useState(/** @type {any} */ (null));
  const wanted = query.find ?? '';
  const log = useLog(part, job, follow);
  const findIt = async (/** @type {number} */ offset = 0, /** @type {any[]} */ before = []) => {
    if (!wanted) return setFound(null);
    setFound({ matches: before, searching: true });
    try {
      const answer = await search(part, wanted, offset, AbortSignal.timeout(30_000));
      return setFound({ ...answer, matches: [...before, ...answer.matches] });
    } catch (error) {
      return setFound({ matches: before, error });
    }
  };
  useEffect(() => {
    findIt();
  }, [wanted, part.stream, part.rank, part.attempt]);
  const ranks = Math.max(job.members.length, job.nodes);
  return html`<div class="log-page">
    <div class="toolbar">
      <${Choice} label="Stream" value=${part.stream} choices=${[['stdout', 'Output'], ['stderr', 'Errors']]} onChange=${(/** @type {string} */ stream) => changeQuery({ stream: stream === 'stderr' ? stream : undefined })} />
      ${ranks > 1 && html`<select aria-label="Rank" value=${part.rank} onChange=${(/** @type {any} */ event) => changeQuery({ rank: event.target.value })}>${Array.from({ length: ranks }, (_, i) => html`<option key=${i} value=${i}>rank ${i}</option>`)}</select>`}
      ${job.attempt > 1 && html`<select aria-label="Attempt" value=${part.attempt || job.attempt} onChange=${(/** @type {any} */ event) => changeQuery({ attempt: event.target.value })}>${Array.from({ length: job.attempt }, (_, i) => html`<option key=${i} value=${i + 1}>attempt ${i + 1}</option>`)}</select>`}
      <input type="search" aria-label="Search the whole output" placeholder="Search the whole output" value=${wanted} onChange=${(/** @type {any} */ event) => changeQuery({ find: event.target.value || undefined })} />
      <span class="grow"></span>
      <span class="muted nowrap">${log.text ? (log.text.start > 0 ? `bytes ${size(log.text.start)} to ${size(log.text.end)}` : `${size(log.text.end)} of output`) : ''}</span>
      ${!hasEnded(job) && html`<label class="check"><input type="checkbox" checked=${follow} onChange=${(/** @type {any} */ event) => setFollow(event.target.checked)} />Follow</label>`}
    </div>
    ${moment.value > 0 && html`<p class="note">Output is not part of the log: this is all that the job has printed by now.</p>`}
    <${Trouble} error=${log.error} retry=${log.again} />
    ${found && html`<${Found} found=${found} wanted=${wanted} onMore=${() => findIt(found.next, found.matches)} onOpen=${(/** @type {number} */ offset) => { setFollow(false); log.openAt(offset); }} />`}
    <${Lines} log=${log} wanted=${wanted} follow=${follow} nothing=${nothing(job)} onLeaveEnd=${() => setFollow(false)} />
    <${CommandLine} line=${commands.logs(job.id, { ...part, find: wanted })} />
  </div>`;
}

/** What an empty output says. @param {any} job */
function nothing(job) {
  const how = hasEnded(job) && job.state !== 'completed' ? note(job) : '';
  return how ? `It has printed nothing here. How it ended: ${how}` : 'It has printed nothing here.';
}

/** The part of the output that is in memory, with what loads more of it.
 *  @param {import('../data/output.js').Part} part @param {any} job @param {boolean} follow */
function useLog(part, job, follow) {
  const [state, setState] = useState(/** @type {any} */ ({ text: null, error: null, ended: false, added: 0, target: -1, version: 0 }));
  const held = useRef(state);
  const busy = useRef(false);
  const key = JSON.stringify(part);
  const live = !hasEnded(job);
  const ended = useRef(new AbortController());
  const show = (/** @type {any} */ changes) => {
    held.current = { ...held.current, added: 0, ...changes, version: held.current.version + 1 };
    setState(held.current);
  };
  /** @param {() => Promise<void>} step */
  const once = async (step) => {
    if (busy.current) return;
    busy.current = true;
    try {
      await step();
    } catch (error) {
      if (!ended.current.signal.aborted) show({ error });
    } finally {
      busy.current = false;
    }
  };
  const openAt = (/** @type {number|undefined} */ offset) =>
    once(async () => {
      const from = offset === undefined ? undefined : Math.max(0, offset - CHUNK / 2);
      const range = await readRange(part, { offset: from, most: from === undefined ? Infinity : CHUNK, signal: ended.current.signal });
      const text = new LogText(range.start);
      text.append(range.bytes);
      if (range.start > 0 && text.lines.length > 1) text.lines.shift();
      if (text.lines.length) text.start = text.lines[0].at;
      show({ text, ended: range.ended, error: null, target: offset ?? -1 });
    });
  const later = () =>
    once(async () => {
      const { text } = held.current;
      const range = await readRange(part, { offset: text.end, signal: ended.current.signal });
      text.append(range.bytes);
      show({ ended: range.ended, error: null, target: -1 });
    });
  const earlier = () =>
    once(async () => {
      const { text } = held.current;
      const from = Math.max(0, text.start - CHUNK);
      const range = await readRange(part, { offset: from, most: text.start - from, signal: ended.current.signal });
      show({ added: text.prepend(range.bytes), target: -1 });
    });
  useEffect(() => {
    ended.current = new AbortController();
    busy.current = false;
    held.current = { ...held.current, text: null, error: null };
    openAt(undefined);
    return () => ended.current.abort();
  }, [key]);
  const atEnd = state.text !== null && state.ended;
  useEffect(() => {
    if (!live || !follow || !atEnd) return undefined;
    const timer = setInterval(later, POLL_MS);
    const leave = subscribe('logs', {
      filter: { ...part, offset: held.current.text.end },
      hear: (event, data) => {
        const { text } = held.current;
        if (event !== 'log' || !text) return;
        const given = Uint8Array.from(atob(data.data), (each) => each.charCodeAt(0));
        const skip = text.end - data.offset;
        if (skip < 0) later();
        else if (skip < given.length) {
          text.append(given.subarray(skip));
          show({ ended: true });
        }
      },
    });
    return () => {
      clearInterval(timer);
      leave();
    };
  }, [key, live, follow, atEnd]);
  return { ...state, openAt, later, earlier, again: () => openAt(undefined) };
}

/** `nothing`: what an empty output says. @param {{log: any, wanted: string, follow: boolean, nothing: string, onLeaveEnd: () => void}} props */
function Lines({ log, wanted, follow, nothing, onLeaveEnd }) {
  const pane = useRef(/** @type {HTMLDivElement|null} */ (null));
  const [view, setView] = useState({ top: 0, height: 600 });
  const { text } = log;
  const lines = text?.lines ?? [];
  useEffect(() => {
    const element = pane.current;
    if (!element || !text) return;
    if (log.added) element.scrollTop += log.added * LINE;
    else if (log.target >= 0) element.scrollTop = Math.max(0, text.placeOf(log.target) * LINE - element.clientHeight / 3);
    else if (follow || log.version === 1) element.scrollTop = element.scrollHeight;
    setView({ top: element.scrollTop, height: element.clientHeight });
  }, [log.version]);
  const onScroll = () => {
    const element = /** @type {HTMLDivElement} */ (pane.current);
    const left = element.scrollHeight - element.scrollTop - element.clientHeight;
    setView({ top: element.scrollTop, height: element.clientHeight });
    if (left > NEAR_END && follow && element.scrollTop < view.top) onLeaveEnd();
    if (element.scrollTop < LINE * 4 && text?.start > 0) log.earlier();
    if (left < NEAR_END && text && !log.ended) log.later();
  };
  const first = Math.max(0, Math.floor(view.top / LINE) - SPARE);
  const last = Math.min(lines.length, Math.ceil((view.top + view.height) / LINE) + SPARE);
  const target = text && log.target >= 0 ? text.placeOf(log.target) : -1;
  return html`<div class="log" ref=${pane} tabindex="0" role="log" aria-label=${`Output, ${count(lines.length)} lines loaded`} onScroll=${onScroll}>
    ${text && !lines.length && html`<p class="muted nothing">${log.ended ? nothing : ''}</p>`}
    <div class="log-lines" style=${{ height: `${lines.length * LINE}px` }}>
      <pre style=${{ transform: `translateY(${first * LINE}px)` }}>
        ${lines.slice(first, last).map((/** @type {any} */ line, /** @type {number} */ place) => html`<div key=${line.at} class=${first + place === target ? 'target' : ''}>${marked(line.text, wanted).map((each) => (each.hit ? html`<mark>${each.text}</mark>` : each.text))}${line.text ? '' : ' '}</div>`)}
      </pre>
    </div>
  </div>`;
}
