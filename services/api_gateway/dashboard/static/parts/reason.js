// @ts-check
/** Why a job of the queue waits, in one line of a table. */
import { useEffect } from 'preact/hooks';
import { moment } from '../data/router.js';
import { reasons, want } from '../data/reasons.js';
import { html } from '../html.js';
import { sentence } from '../view/format.js';
import { note } from '../view/jobs.js';

const AGAIN_MS = 30_000;

/** @param {{job: any}} props */
export function Reason({ job }) {
  const isAsked = job.state === 'queued' && !job.held && !moment.value;
  useEffect(() => {
    if (!isAsked) return undefined;
    let leave = want(job.id);
    const timer = setInterval(() => {
      leave();
      leave = document.hidden ? () => {} : want(job.id);
    }, AGAIN_MS);
    return () => {
      clearInterval(timer);
      leave();
    };
  }, [job.id, isAsked]);
  const text = sentence((isAsked && reasons.value.get(job.id)?.text) || note(job));
  return html`<span class="muted" title=${text}>${text}</span>`;
}
