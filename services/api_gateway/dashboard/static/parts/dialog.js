// @ts-check
/** Every action asks once, shows the command that does the same, and tells what the gateway says. */
import { signal } from '@preact/signals';
import { useEffect, useRef, useState } from 'preact/hooks';
import { moment } from '../data/router.js';
import { html } from '../html.js';
import { CommandLine } from './basics.js';

/** @typedef {{title: string, text: string, line: string, label: string, danger?: boolean,
 *   run: () => Promise<any>, done?: string}} Question */

/** @type {import('@preact/signals').Signal<Question|null>} */
const question = signal(null);
/** @type {import('@preact/signals').Signal<{text: string, number: number}|null>} */
export const message = signal(null);
const SHOWN_MS = 5000;
let messages = 0;

/** Tell the user something that needs no answer. @param {string} text */
export function tell(text) {
  messages += 1;
  const number = messages;
  message.value = { text, number };
  setTimeout(() => {
    if (message.value?.number === number) message.value = null;
  }, SHOWN_MS);
}

/** A button that asks before it acts. In the past nothing can be changed.
 * @param {Question & {children?: any, class?: string, disabled?: boolean}} props */
export function Action(props) {
  const past = moment.value > 0;
  return html`<button
    type="button"
    class=${props.class ?? (props.danger ? 'danger' : '')}
    disabled=${past || props.disabled}
    title=${past ? 'Go back to now to change something' : undefined}
    onClick=${(/** @type {Event} */ event) => {
      event.stopPropagation();
      question.value = props;
    }}
  >
    ${props.children ?? props.label}
  </button>`;
}

/** The one dialog of the page. */
export function Dialog() {
  const asked = question.value;
  const element = useRef(/** @type {HTMLDialogElement|null} */ (null));
  const [state, setState] = useState({ running: false, error: '' });
  useEffect(() => {
    setState({ running: false, error: '' });
    if (asked) element.current?.showModal();
    else element.current?.close();
  }, [asked]);
  const close = () => {
    question.value = null;
  };
  const run = async () => {
    if (!asked) return;
    setState({ running: true, error: '' });
    try {
      await asked.run();
      tell(asked.done ?? `Done: ${asked.label.toLowerCase()}.`);
      close();
    } catch (error) {
      setState({ running: false, error: error instanceof Error ? error.message : String(error) });
    }
  };
  return html`<dialog ref=${element} onClose=${close} aria-labelledby="dialog-title">
    ${asked &&
    html`<form method="dialog" onSubmit=${(/** @type {Event} */ event) => {
      event.preventDefault();
      run();
    }}>
      <h2 id="dialog-title">${asked.title}</h2>
      <p>${asked.text}</p>
      <${CommandLine} line=${asked.line} />
      ${state.error && html`<p class="note bad" role="alert">${state.error}</p>`}
      <div class="buttons">
        <button type="button" class="quiet" onClick=${close}>Leave it</button>
        <button type="submit" class=${asked.danger ? 'danger solid' : 'primary'} disabled=${state.running} autofocus>
          ${state.running ? 'Waiting…' : asked.label}
        </button>
      </div>
    </form>`}
  </dialog>`;
}

export function Messages() {
  return html`<div class="messages" role="status" aria-live="polite">${message.value && html`<p key=${message.value.number}>${message.value.text}</p>`}</div>`;
}
