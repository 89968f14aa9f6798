// @ts-check
/** The text fields of the forms for jobs and models, as the gateway's bodies. */
import { words } from '../view/command_lines.js';

/** The lines NAME=VALUE of a text as an object. @param {string} text */
export function environment(text) {
  const pairs = text
    .split('\n')
    .map((line) => line.trim())
    .filter(Boolean)
    .map((line) => {
      const at = line.indexOf('=');
      return at < 0 ? [line, ''] : [line.slice(0, at), line.slice(at + 1)];
    });
  return pairs.length ? Object.fromEntries(pairs) : undefined;
}

/** The lines SECRET or SECRET=VARIABLE of a text: variables with the names of secrets. @param {string} text */
export function secrets(text) {
  const named = environment(text);
  return named && Object.fromEntries(Object.entries(named).map(([secret, variable]) => [variable || secret, secret]));
}

/** A command as a list: one that needs a shell gets one. @param {string} text */
export function command(text) {
  const bare = text.trim();
  if (!bare) return undefined;
  return /[|&;<>$`\n*]/.test(bare) ? ['sh', '-c', bare] : words(bare);
}

/** The body without what was left empty. @param {Record<string, any>} body */
export const given = (body) => Object.fromEntries(Object.entries(body).filter(([, value]) => value !== undefined && value !== ''));

/** The field that a refusal names: "gpus: …" names gpus. @param {Error|null} error @param {string[]} fields */
export function fieldOf(error, fields) {
  const name = /^([a-z_]+)(?:[.[].*?)?:/.exec(error?.message ?? '')?.[1] ?? '';
  return fields.includes(name) ? name : '';
}

/** Give the field the focus when its page is opened: the browser does so for the first page only.
 *  @param {HTMLElement|null} field */
export const focused = (field) => field?.focus({ preventScroll: true });
