// @ts-check
/** A form that is filled in from a job or model of the log, named by `from` in the URL. */
import { useEffect, useState } from 'preact/hooks';
import { get, segment } from './api.js';
import { place } from './router.js';
import { ofJob, ofModel } from '../view/forms.js';

/** @param {string} id */
export async function jobForm(id) {
  const [job, history] = await Promise.all([get(`/v1/jobs/${segment(id)}`), get(`/v1/jobs/${segment(id)}/history`, { limit: 1 }).catch(() => null)]);
  const submitted = history?.facts?.find((/** @type {any} */ fact) => fact.kind === 'job.submitted');
  return { source: job, form: ofJob(job, submitted?.fact?.spec ?? {}) };
}

/** @param {string} name */
export async function modelForm(name) {
  const model = await get(`/v1/deployments/${segment(name)}`);
  return { source: model, form: ofModel(model) };
}

/** `source`: what the form was filled in from. @template T
 *  @param {T} blank @param {(from: string) => Promise<{source: any, form: any}>} read */
export function useFilled(blank, read) {
  const from = place.value.query.from ?? '';
  const [form, setForm] = useState(blank);
  const [source, setSource] = useState(/** @type {any} */ (null));
  const [error, setError] = useState(/** @type {Error|null} */ (null));
  useEffect(() => {
    let left = false;
    setForm(blank);
    setSource(null);
    setError(null);
    if (from) {
      read(from).then(
        (found) => {
          if (left) return;
          setForm({ ...blank, ...found.form });
          setSource(found.source);
        },
        (failed) => left || setError(failed),
      );
    }
    return () => {
      left = true;
    };
  }, [from]);
  return { form, setForm, source, error };
}
