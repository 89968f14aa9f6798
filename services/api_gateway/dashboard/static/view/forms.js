// @ts-check
/** Pure: the forms for jobs and models, filled in from a job or model of the log. */
import { quoted } from './command_lines.js';

/** A command as it was typed: a line of a shell, or quoted words. @param {string[]} words */
export function typed(words) {
  const isShell = words.length === 3 && words[0] === 'sh' && words[1] === '-c';
  return isShell ? words[2] : words.map(quoted).join(' ');
}

/** Lines NAME=VALUE. @param {Record<string, string>|undefined} pairs */
const pairLines = (pairs) => Object.entries(pairs ?? {}).map(([name, value]) => `${name}=${value}`).join('\n');

/** @param {number} share hundredths of each GPU */
const fraction = (share) => (share < 100 ? String(share / 100) : '');

/** @param {number|undefined} seconds */
const seconds = (seconds) => (seconds ? `${seconds}s` : '');

/** The fields of a job's form. `spec` is what was submitted, with the fields that lists do not show.
 *  @param {any} job @param {any} spec */
export function ofJob(job, spec) {
  return {
    name: job.name,
    command: typed(job.command),
    gpus: String(job.gpus),
    fraction: fraction(job.gpu_share),
    nodes: String(job.nodes),
    queue: job.queue === 'default' ? '' : job.queue,
    priority: job.priority === 50 ? '' : String(job.priority),
    time_limit: seconds(job.time_limit_s),
    estimate: seconds(spec.estimate_s),
    image: job.image,
    env: pairLines(spec.env),
    secrets: Object.entries(spec.secrets ?? {}).map(([variable, secret]) => (variable === secret ? secret : `${secret}=${variable}`)).join('\n'),
  };
}

/** The fields of a model's form. Its environment is not shown to anyone. @param {any} model */
export function ofModel(model) {
  const { scaling } = model;
  return {
    name: model.name,
    command: typed(model.command),
    gpus: String(model.gpus),
    fraction: fraction(model.gpu_share),
    by: scaling ? 'scaled' : 'fixed',
    replicas: String(scaling ? 1 : model.wanted || 1),
    least: String(scaling?.replicas_min ?? 0),
    most: String(scaling?.replicas_max ?? 4),
    ttft: scaling?.first_token_ms ? String(scaling.first_token_ms) : '',
    image: model.image,
    env: '',
    secrets: '',
  };
}
