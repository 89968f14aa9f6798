// @ts-check
/** A chat with a model: the answer comes as the model makes it. */
import { useEffect, useRef, useState } from 'preact/hooks';
import { send } from '../data/api.js';
import { html } from '../html.js';
import { gap } from '../view/format.js';
import { parts } from '../view/chat_text.js';
import { chunksOf } from '../view/event_stream.js';
import { Panel } from './basics.js';
import { Icon } from './icons.js';

/** An answer, with what Markdown marks as bold or code. @param {{text: string}} props */
function Said({ text }) {
  return parts(text).map((part) => (part.kind === 'plain' ? part.text : part.kind === 'bold' ? html`<b>${part.text}</b>` : html`<code class=${part.kind}>${part.text}</code>`));
}

/** @param {{model: any}} props */
export function Chat({ model }) {
  const [talk, setTalk] = useState(/** @type {{role: string, content: string, note?: string, failed?: boolean}[]} */ ([]));
  const [text, setText] = useState('');
  const [running, setRunning] = useState(/** @type {AbortController|null} */ (null));
  const pane = useRef(/** @type {HTMLDivElement|null} */ (null));
  useEffect(() => {
    if (pane.current) pane.current.scrollTop = pane.current.scrollHeight;
  }, [talk]);
  const ask = async (/** @type {Event} */ event) => {
    event.preventDefault();
    const said = text.trim();
    if (!said || running) return;
    const stop = new AbortController();
    const asked = [...talk, { role: 'user', content: said }];
    const messages = asked.filter((each) => !each.failed).map(({ role, content }) => ({ role, content }));
    const show = (/** @type {any} */ last) => setTalk([...asked, { role: 'assistant', content: '', ...last }]);
    setText('');
    setRunning(stop);
    show({ note: model.ready ? 'waits for its first token' : 'waits for a replica to start' });
    await answered(model.name, messages, stop.signal, show);
    setRunning(null);
  };
  return html`<${Panel} title="Chat" class="chat" actions=${talk.length > 0 && html`<button type="button" class="quiet" disabled=${running !== null} onClick=${() => setTalk([])}>Clear</button>`}>
    <div class="talk" ref=${pane} tabindex="0" role="log" aria-label="Conversation" aria-live="polite">
      ${!talk.length && html`<p class="muted">${model.ready ? 'Say something. The answer comes word by word.' : 'No replica is ready. A request waits for one.'}</p>`}
      ${talk.map((each, place) => html`<div key=${place} class=${`said ${each.role} ${each.failed ? 'failed' : ''}`}><p>${each.role === 'assistant' ? html`<${Said} text=${each.content} />` : each.content}</p>${each.note && html`<span class="muted">${each.note}</span>`}</div>`)}
    </div>
    <form onSubmit=${ask}>
      <textarea
        rows="2" aria-label="Message" placeholder="Message" value=${text}
        onInput=${(/** @type {any} */ event) => setText(event.target.value)}
        onKeyDown=${(/** @type {KeyboardEvent} */ event) => event.key === 'Enter' && !event.shiftKey && ask(event)}
      ></textarea>
      ${running
        ? html`<button type="button" onClick=${() => running.abort()}>Stop</button>`
        : html`<button type="submit" class="primary" aria-label="Send" disabled=${!text.trim()}><${Icon} name="send" /></button>`}
    </form>
  <//>`;
}

/** @param {string} model @param {any[]} messages @param {AbortSignal} signal @param {(last: any) => void} show */
async function answered(model, messages, signal, show) {
  const from = performance.now();
  let content = '';
  let firstMs = 0;
  try {
    const answer = await send('POST', '/v1/chat/completions', { body: { model, messages, stream: true }, signal });
    for await (const piece of chunksOf(answer)) {
      if (piece.error) throw new Error(piece.error.message ?? 'The model ended with an error.');
      const delta = piece.choices?.[0]?.delta?.content ?? '';
      if (delta && !firstMs) firstMs = performance.now() - from;
      content += delta;
      if (delta) show({ content, note: `first token after ${gap(firstMs)}` });
    }
    show({ content, note: `first token after ${gap(firstMs)}, all after ${gap(performance.now() - from)}` });
  } catch (error) {
    if (signal.aborted) show({ content, note: 'stopped' });
    else show({ content, failed: true, note: error instanceof Error ? error.message : String(error) });
  }
}
