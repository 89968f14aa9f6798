// @ts-check
/** Pure: the ids of jobs in a sentence, and the job that a remedy names. */

const JOB = /\bj[a-z0-9]{10}\b/;
const FORM_SPECIAL = /[.*+?^${}()|[\]\\]/g;

/** A sentence in pieces; those that name a job or a replica of the model have its id.
 *  @param {string} text @param {string} model */
export function pieces(text, model = '') {
  const replica = model ? `|(?<![\\w.-])${model.replace(FORM_SPECIAL, '\\$&')}-\\d+(?![\\w.-])` : '';
  return text.split(new RegExp(`(${JOB.source}${replica})`)).map((piece, place) => ({ text: piece, job: place % 2 ? piece : '' })).filter((piece) => piece.text);
}

/** The job that a remedy wants to be cancelled; empty if it wants something else. @param {string} remedy */
export function cancelled(remedy) {
  return /^cancel /.test(remedy) ? (JOB.exec(remedy)?.[0] ?? '') : '';
}
