// @ts-check
/** Pure: the parts of a model's answer that Markdown marks as bold or as code. The rest stays as it is. */

const MARKS = /```[\w+-]*\n([\s\S]*?)(?:```|$)|`([^`\n]+)`|\*\*(?=\S)([^*\n]+)(?<=\S)\*\*/g;

/** @param {string} text @returns {{kind: 'plain'|'block'|'code'|'bold', text: string}[]} */
export function parts(text) {
  /** @type {{kind: 'plain'|'block'|'code'|'bold', text: string}[]} */
  const found = [];
  let from = 0;
  for (const match of text.matchAll(MARKS)) {
    if (match.index > from) found.push({ kind: 'plain', text: text.slice(from, match.index) });
    const [whole, block, code, bold] = match;
    if (block !== undefined) found.push({ kind: 'block', text: block.replace(/\n$/, '') });
    else found.push(code !== undefined ? { kind: 'code', text: code } : { kind: 'bold', text: bold });
    from = match.index + whole.length;
  }
  if (from < text.length) found.push({ kind: 'plain', text: text.slice(from) });
  return found;
}
