// @ts-check
/** The dashboard's beginning: who is signed in decides between the sign-in and the pages. Each page
 * is loaded when it is first shown. */
import { Component, render } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import { go, href, listen, place } from './data/router.js';
import { begin as beginSession, failure, session } from './data/session.js';
import { begin as beginShown } from './data/shown.js';
import { connect } from './data/stream.js';
import { begin as beginSummary } from './data/summary.js';
import { watch } from './data/version.js';
import { html } from './html.js';
import { Empty, Loading, Trouble } from './parts/basics.js';
import { Shell } from './parts/shell.js';

const LOADERS = {
  fleet: () => import('./pages/fleet.js'),
  queue: () => import('./pages/queue.js'),
  jobs: () => import('./pages/jobs.js'),
  job: () => import('./pages/job.js'),
  submit: () => import('./pages/submit.js'),
  models: () => import('./pages/models.js'),
  model: () => import('./pages/model.js'),
  deploy: () => import('./pages/deploy.js'),
  tenants: () => import('./pages/tenants.js'),
  tenant: () => import('./pages/tenant.js'),
  audit: () => import('./pages/audit.js'),
  nodes: () => import('./pages/nodes.js'),
  node: () => import('./pages/node.js'),
  'sign-in': () => import('./pages/sign_in.js'),
};

/** A page that fails shows that, and leaves the navigation usable. */
class Guard extends Component {
  constructor(/** @type {any} */ props) {
    super(props);
    this.state = { error: /** @type {Error|null} */ (null) };
  }

  static getDerivedStateFromError(/** @type {Error} */ error) {
    return { error };
  }

  componentDidUpdate(/** @type {any} */ before) {
    if (before.name !== this.props.name && this.state.error) this.setState({ error: null });
  }

  render() {
    if (!this.state.error) return this.props.children;
    return html`<div class="page"><${Trouble} error=${new Error(`This page failed: ${this.state.error.message}. Load it again, and report it if it comes back.`)} /></div>`;
  }
}

/** @param {{page: string, name: string}} props */
function Page({ page, name }) {
  const [shown, setShown] = useState(/** @type {any} */ (null));
  const [error, setError] = useState(/** @type {Error|null} */ (null));
  useEffect(() => {
    let left = false;
    setError(null);
    LOADERS[/** @type {keyof typeof LOADERS} */ (page)]?.().then(
      (module) => left || setShown({ page, view: module.default }),
      () => left || setError(new Error('This page could not be loaded from the gateway. Load it again.')),
    );
    return () => {
      left = true;
    };
  }, [page]);
  if (page === 'missing') {
    return html`<div class="page"><${Empty} title="There is no such page"><a href=${href('/')}>Go to the fleet</a><//></div>`;
  }
  if (error) return html`<div class="page"><${Trouble} error=${error} retry=${() => location.reload()} /></div>`;
  if (shown?.page !== page) return html`<div class="page"><${Loading} /></div>`;
  return html`<${Guard} name=${`${page}/${name}`}><${shown.view} name=${name} key=${`${page}/${name}`} /><//>`;
}

function App() {
  const { page, name, path } = place.value;
  const known = session.value;
  const signedIn = known?.signed_in;
  useEffect(() => {
    if (signedIn) connect();
    if (known && !signedIn && page !== 'sign-in') {
      go(`/sign-in?${new URLSearchParams({ next: path + location.search })}`, { replace: true });
    }
  }, [signedIn, known, page]);
  if (!known) return html`<div class="page">${failure.value ? html`<${Trouble} error=${new Error(failure.value)} />` : html`<${Loading} />`}</div>`;
  if (!signedIn || page === 'sign-in') return html`<${Page} page="sign-in" name="" />`;
  return html`<${Shell}><${Page} page=${page} name=${name} /><//>`;
}

/** The key / goes to the page's search, as in many programs. */
document.addEventListener('keydown', (event) => {
  if (event.key !== '/' || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target instanceof Element && event.target.closest('input, textarea, select, dialog')) return;
  const field = document.querySelector('#main input[type=search]');
  if (!(field instanceof HTMLElement)) return;
  event.preventDefault();
  field.focus();
});
listen();
beginSession();
beginSummary();
beginShown();
watch();
render(html`<${App} />`, /** @type {HTMLElement} */ (document.getElementById('app')));
