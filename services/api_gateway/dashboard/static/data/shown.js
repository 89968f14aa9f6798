// @ts-check
/** The time that the pages show: now, or that of the past moment. All durations count up to it. */
import { computed, effect, signal } from '@preact/signals';
import { get } from './api.js';
import { now } from './clock.js';
import { moment } from './router.js';
import { session } from './session.js';
import { millis } from '../view/format.js';

/** The time of the commit that is shown; null for now, and while it is not known. */
export const momentAt = signal(/** @type {number|null} */ (null));

/** In milliseconds; NaN while the time of a past moment is not known. */
export const present = computed(() => (moment.value ? (momentAt.value ?? NaN) : now.value));

/** Follow the moment in the URL. */
export function begin() {
  effect(() => {
    const at = moment.value;
    momentAt.value = null;
    if (!at || !session.value?.signed_in) return;
    get('/v1/moments', { at }).then(
      (found) => {
        if (moment.value === at) momentAt.value = millis(found.moment?.at);
      },
      () => {},
    );
  });
}
