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
