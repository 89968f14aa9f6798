// @ts-check
/** The environment field and the end of the forms for jobs and models. */
import { href, moment, place } from '../data/router.js';
import { html } from '../html.js';
import { CommandLine, Field, Trouble } from './basics.js';

/** @param {{form: any, setForm: (form: any) => void, error: string|undefined, help: string}} props */
export function Environment({ form, setForm, error, help }) {
  return html`<${Field} label="Environment" wide=${true} error=${error} help=${help}>
    <textarea class="mono" rows="2" spellcheck="false" value=${form.env} onInput=${(/** @type {any} */ event) => setForm({ ...form, env: event.target.value })}></textarea>
  <//>`;
}

/** The refusal that names no field, the command that does the same, and the button.
 * @param {{error: Error|null, line: string, sending: boolean, text: string, busy: string}} props */
export function FormEnd({ error, line, sending, text, busy }) {
  return html`<div class="content ends">
    ${error && html`<${Trouble} error=${error} />`}
    <${CommandLine} line=${line} />
    <div class="buttons">${moment.value > 0 && html`<span class="muted">You are looking at the past. <a href=${href(place.value.path, { ...place.value.query, at: undefined })}>Go back to now</a> to submit.</span>`}<button type="submit" class="primary large" disabled=${sending || moment.value > 0}>${sending ? busy : text}</button></div>
  </div>`;
}
