// @ts-check
/** Reads server-sent events with JSON, as OpenAI's streams have them. */

/** The data of one line; null for other lines. @param {string} line */
export function dataOf(line) {
  if (!line.startsWith('data:')) return null;
  const text = line.slice(5).trim();
  return text === '[DONE]' || !text ? null : JSON.parse(text);
}

/** @param {Response} answer */
export async function* chunksOf(answer) {
  const reader = /** @type {ReadableStream<Uint8Array>} */ (answer.body).getReader();
  const decoder = new TextDecoder();
  let rest = '';
  for (;;) {
    const { done, value } = await reader.read();
    rest += decoder.decode(value, { stream: !done });
    const lines = rest.split('\n');
    rest = done ? '' : /** @type {string} */ (lines.pop());
    for (const line of lines) {
      const data = dataOf(line);
      if (data !== null) yield data;
    }
    if (done) return;
  }
}
