// @ts-check
/** The present, once a second, and the width of the window: what many parts show by. */
import { signal } from '@preact/signals';

export const now = signal(Date.now());
setInterval(() => {
  if (!document.hidden) now.value = Date.now();
}, 1000);

/** small: a phone; medium: a tablet or half a screen; large. */
export const size = signal(sizeOf());
function sizeOf() {
  return innerWidth < 720 ? 'small' : innerWidth < 1180 ? 'medium' : 'large';
}
addEventListener('resize', () => {
  size.value = sizeOf();
});
