// @ts-check
/** Whether the gateway serves a newer dashboard than this page, for example after an upgrade. */
import { effect, signal } from '@preact/signals';
import { connection } from './stream.js';

export const newer = signal(false);
let known = '';

async function look() {
  const answer = await fetch('/', { cache: 'no-cache' }).catch(() => null);
  const etag = answer?.ok ? (answer.headers.get('etag') ?? '') : '';
  if (etag && known && etag !== known) newer.value = true;
  known ||= etag;
}

/** Look at each new connection: only a gateway that was restarted can have a newer page. */
export function watch() {
  effect(() => {
    if (connection.value.state === 'live') look();
  });
}
