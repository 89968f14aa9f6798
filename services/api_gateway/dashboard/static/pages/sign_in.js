// @ts-check
/** Sign in: by key, by the organisation's provider, or by a link from `muster dashboard`. */
import { useEffect, useState } from 'preact/hooks';
import { failure, next, session, signIn, welcome } from '../data/session.js';
import { dark, switchTheme } from '../data/theme.js';
import { html } from '../html.js';
import { CommandLine, Field } from '../parts/basics.js';
import { Icon } from '../parts/icons.js';

export default function SignIn() {
  const [key, setKey] = useState('');
  const [waiting, setWaiting] = useState(false);
  const signedIn = session.value?.signed_in;
  useEffect(() => {
    document.title = 'Sign in · Muster';
    if (signedIn) welcome();
  }, [signedIn]);
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    setWaiting(true);
    await signIn({ key: key.trim() });
    setWaiting(false);
    setKey('');
  };
  return html`<main class="sign-in" id="main">
    <button type="button" class="quiet round corner" aria-label=${dark.value ? 'Switch to light' : 'Switch to dark'} onClick=${switchTheme}><${Icon} name=${dark.value ? 'sun' : 'moon'} /></button>
    <form onSubmit=${submit}>
      <div class="brand"><svg viewBox="0 0 32 32" aria-hidden="true"><path d="M6 6h5.5v5.5H6zM13.25 13.25h5.5v5.5h-5.5zM20.5 6H26v5.5h-5.5zM6 13.25h5.5v5.5H6zM20.5 13.25H26v5.5h-5.5zM6 20.5h5.5V26H6zM20.5 20.5H26V26h-5.5z" /></svg></div>
      <h1>Sign in to Muster</h1>
      ${session.value?.oidc && html`<a class="button primary large" href=${`/v1/session/oidc?${new URLSearchParams({ next: next() })}`}>Sign in with your organisation</a><p class="or"><span>or</span></p>`}
      <${Field} label="API key">
        <input type="password" autocomplete="current-password" spellcheck="false" required value=${key} onInput=${(/** @type {any} */ event) => setKey(event.target.value)} autofocus />
      <//>
      ${failure.value && html`<p class="note bad" role="alert">${failure.value}</p>`}
      <button type="submit" class=${`large ${session.value?.oidc ? '' : 'primary'}`} disabled=${waiting || !key.trim()}>${waiting ? 'Signing in…' : 'Sign in'}</button>
      <div class="hint">
        <p class="muted">Where the command line is set up, it opens this page for you:</p>
        <${CommandLine} line="muster dashboard --open" label="Sign in from the command line" />
      </div>
    </form>
  </main>`;
}
