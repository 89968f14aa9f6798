// @ts-check
/** One job: how it is, what happened to it, what it printed, and why it waits. */
import { segment } from '../data/api.js';
import { href, moment, place } from '../data/router.js';
import { present } from '../data/shown.js';
import { useAnswer } from '../data/use_answer.js';
import { html } from '../html.js';
import { Loading, Tabs, Trouble } from '../parts/basics.js';
import { Diagnosis } from '../parts/diagnosis.js';
import { JobActions } from '../parts/job_actions.js';
import { JobDetails } from '../parts/job_details.js';
import { JobTimeline } from '../parts/job_timeline.js';
import { LogView } from '../parts/log_view.js';
import { State } from '../parts/state.js';
import { Why } from '../parts/why.js';
import { request, span, title, WAITING } from '../view/jobs.js';

/** @param {{name: string}} props */
export default function JobPage({ name }) {
  const { query } = place.value;
  const { data: job, error, again } = useAnswer(`/v1/jobs/${segment(name)}`, {}, {
    topic: 'jobs',
    filter: { ids: [name], snapshot: false },
    apply: (old, event, news) => (news?.id === old.id ? news : old),
  });
  const path = `/jobs/${segment(name)}`;
  const waiting = job && WAITING.includes(job.state);
  const tab = query.tab ?? (waiting ? 'why' : 'details');
  const tabs = [
    { name: 'details', text: 'Details', url: href(path, { tab: 'details' }) },
    { name: 'timeline', text: 'Timeline', url: href(path, { tab: 'timeline' }) },
    { name: 'logs', text: 'Logs', url: href(path, { tab: 'logs' }) },
    { name: 'diagnosis', text: 'Diagnosis', url: href(path, { tab: 'diagnosis' }) },
    { name: 'why', text: 'Why', url: href(path, { tab: 'why' }) },
  ];
  return html`<div class="page ${tab === 'logs' ? 'filled' : ''}">
    <div class="page-head">
      <h1><a class="crumb" href=${href('/jobs')}>Jobs</a> <span class="crumb" aria-hidden="true">/</span> ${job ? title(job) : name}</h1>
      ${job && html`<${State} state=${job.held && job.state === 'queued' ? 'held' : job.state} /><span class="sub">${request(job)} · ${span(job, present.value)} · ${job.tenant}/${job.user}</span>`}
      ${job && html`<div class="actions"><${JobActions} job=${job} /></div>`}
    </div>
    <${Trouble} error=${error} retry=${again} />
    ${!job && !error && html`<${Loading} />`}
    ${job &&
    html`<${Tabs} label="Views of the job" value=${tab} tabs=${tabs} />
      ${tab === 'details' && html`<${JobDetails} job=${job} />`}
      ${tab === 'timeline' && html`<${JobTimeline} job=${job} />`}
      ${tab === 'logs' && html`<${LogView} job=${job} query=${query} key=${job.id} />`}
      ${tab === 'diagnosis' && html`<${Diagnosis} job=${job} />`}
      ${tab === 'why' && html`<${Why} path=${`/v1/jobs/${segment(job.id)}/why`} name=${job.id} at=${moment.value} state=${job.state} />`}`}
  </div>`;
}
