// @ts-check
/** The environment field and the end of the forms for jobs and models. */
import { href, moment, place } from '../data/router.js';
import { html } from '../html.js';
import { CommandLine, Field, Trouble } from './basics.js';

/** Variables and secrets. @param {{form: any, setForm: (form: any) => void, wrong: string, error: Error|null, kept?: boolean}} props
 *   `kept`: what is left empty stays as it is. */
export function Environment({ form, setForm, wrong, error, kept }) {
  const area = (/** @type {string} */ name) => html`<textarea class="mono" name=${name} rows="2" spellcheck="false" value=${form[name]} onInput=${(/** @type {any} */ event) => setForm({ ...form, [name]: event.target.value })}></textarea>`;
  const said = (/** @type {string} */ name) => (wrong === name ? error?.message : undefined);
  const empty = kept ? ' Empty: as before.' : '';
  return html`<${Field} label="Environment" wide=${true} error=${said('env')} help=${`One NAME=VALUE a line. The log keeps these values, so put passwords into secrets.${empty}`}>${area('env')}<//>
    <${Field} label="Secrets" wide=${true} error=${said('secrets')} help=${`One SECRET or SECRET=VARIABLE a line: the job gets the secret's value in that variable. Make secrets with "muster secret set".${empty}`}>${area('secrets')}<//>`;
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
