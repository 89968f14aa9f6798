// @ts-check
/** Light or dark: as the system says, or as the user chose in this browser. */
import { computed, effect, signal } from '@preact/signals';

const KEY = 'muster-theme';
const CHOICES = ['auto', 'light', 'dark'];
const system = matchMedia('(prefers-color-scheme: dark)');
const systemDark = signal(system.matches);

function stored() {
  try {
    const found = localStorage.getItem(KEY) ?? 'auto';
    return CHOICES.includes(found) ? found : 'auto';
  } catch {
    return 'auto';
  }
}

export const theme = signal(stored());
export const dark = computed(() => (theme.value === 'auto' ? systemDark.value : theme.value === 'dark'));

system.addEventListener('change', () => {
  systemDark.value = system.matches;
});
effect(() => {
  document.documentElement.dataset.theme = dark.value ? 'dark' : 'light';
});

export function switchTheme() {
  theme.value = dark.value ? 'light' : 'dark';
  try {
    localStorage.setItem(KEY, theme.value);
  } catch {
    // A browser that keeps nothing forgets the choice with the page.
  }
}
