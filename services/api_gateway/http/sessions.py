"""/v1/session: sign in with a key or a one-time link, and sign out.

The answer sets a cookie that scripts cannot read. `Edge` accepts it on every route; `origins.py`
says from which pages. Failed sign-ins are recorded like requests with an unknown key. Tests:
tests/integration/test_gateway_sessions.py.
"""

import secrets
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from libs.common.errors import Refused
from services.api_gateway.access import sessions
from services.api_gateway.access.auth import bearer
from services.api_gateway.access.roles import Principal
from services.api_gateway.access.sessions import LINK, LINK_S, LINKS_MAX, SESSION, Session
from services.api_gateway.gateway import Gateway
from services.api_gateway.http import origins
from services.api_gateway.http.answer_types import SessionLink, SessionShown
from services.api_gateway.http.queries import (
    Query,
    answer,
    body_of,
    documented,
    gateway_of,
    gateway_without_query,
    principal_of,
)
from services.api_gateway.http.routing import APIRouter
from services.api_gateway.intents.fields import check_known
from services.api_gateway.problems import Denied, Problem
from services.api_gateway.times import rfc3339

# Proxies and browsers must not store an answer about a session.
PRIVATE: Final = {"cache-control": "no-store"}
FIELDS: Final = ("key", "link")

router = APIRouter(tags=["session"])


@router.get("/v1/session", openapi_extra=documented(Query))
async def show_session(request: Request) -> Response:
    """Return whether the request is signed in, and as which user, tenant and role."""
    gateway = gateway_without_query(request)
    principal: Principal | None = request.scope["principal"]
    credential = _credential(request) if principal is not None else None
    return answer(_shown(gateway, principal, credential), headers=PRIVATE)


@router.post("/v1/session", openapi_extra=documented(Query, FIELDS))
async def sign_in(request: Request) -> Response:
    """Sign in with an API key, or with the code of a one-time link, and set the session's cookie.

    A page of another origin cannot sign a browser in.
    """
    gateway = gateway_without_query(request)
    if b"origin" in request.scope["header"] and not origins.is_own(request.scope):
        raise origins.denial(request.scope)
    name, text = _given(await body_of(request))
    source = await _linked(gateway, text) if name == "link" else _keyed(gateway, text)
    now_ns = gateway.clock.wall_ns()
    found = gateway.keys.accepts(source, gateway.cluster, now_ns)
    if isinstance(found, str):
        raise Denied(401, f"{name}: {found}: sign in again")
    request.scope["principal"] = found  # the access record names the user
    return begin(request, found, source)


def begin(request: Request, principal: Principal, source: Session) -> Response:
    """Answer with a new session made from `source`, in the cookie."""
    gateway = gateway_of(request)
    session = new_session(gateway, source)
    response = answer(_shown(gateway, principal, session), headers=PRIVATE)
    response.headers.append("set-cookie", cookie(request, seal(gateway, session)))
    return response


@router.delete("/v1/session", status_code=204, openapi_extra=documented(Query))
async def sign_out(request: Request) -> Response:
    """Sign out: remove the session's cookie from this browser."""
    gateway_without_query(request)
    if b"origin" in request.scope["header"] and not origins.is_own(request.scope):
        raise origins.denial(request.scope)
    return Response(status_code=204, headers={**PRIVATE, "set-cookie": cookie(request, "")})


@router.post("/v1/session/links", status_code=201, openapi_extra=documented(Query))
async def create_link(request: Request) -> Response:
    """Create a link that signs a browser in once, as the user of this request's key."""
    gateway = gateway_without_query(request)
    now_ns, tenant = gateway.clock.wall_ns(), principal_of(request).tenant
    if not gateway.sign_on.links.take(tenant, now_ns):
        text = f"tenant {tenant} created {LINKS_MAX} links in this minute: wait for the next one"
        raise Problem(429, text, retry_after_s=60)
    credential = _credential(request)
    assert credential is not None  # the edge has accepted it
    link = sessions.begun(credential, LINK, now_ns, LINK_S, once=secrets.token_hex(16))
    shown = SessionLink(path=f"/#link={seal(gateway, link)}", expires_s=LINK_S)
    return answer(shown, 201, PRIVATE)


def new_session(gateway: Gateway, source: Session) -> Session:
    now_ns = gateway.clock.wall_ns()
    return sessions.begun(source, SESSION, now_ns, gateway.settings.gateway_session_s)


def seal(gateway: Gateway, session: Session) -> str:
    """Return the token of a session. Raises Refused if the gateway has no key for sessions."""
    nonce = secrets.token_bytes(sessions.NONCE_BYTES)
    return sessions.sealed(session, gateway.keys.session_key(), nonce)


def cookie(request: Request, token: str) -> str:
    """Return the Set-Cookie header of a session; an empty token removes the cookie."""
    age_s = gateway_of(request).settings.gateway_session_s if token else 0
    return sessions.set_cookie(token, age_s, secure=is_secure(request), strict=True)


def is_secure(request: Request) -> bool:
    """Return whether the browser reaches the gateway over TLS, perhaps through a proxy.

    The browser says so in Origin; a redirection has none, and leads to the set address.
    """
    address = request.headers.get("origin") or gateway_of(request).settings.gateway_url
    return request.url.scheme == "https" or address.startswith("https:")


def _given(body: object) -> tuple[str, str]:
    """Return which field the body has, and its text. Raises Refused."""
    fields = body if isinstance(body, dict) else {}
    check_known(fields, FIELDS, "field")
    given = [(name, fields[name]) for name in FIELDS if name in fields]
    if len(given) != 1 or not isinstance(given[0][1], str) or not given[0][1]:
        raise Refused('the body must be {"key": KEY} or {"link": CODE}: send one of them as text')
    return given[0]


def _keyed(gateway: Gateway, key: str) -> Session:
    now_ns = gateway.clock.wall_ns()
    found = gateway.keys.credential(key.strip(), gateway.cluster, now_ns)
    if found is None:
        raise Denied(
            401, "key: it is not accepted: check it, or ask an administrator for a new one"
        )
    return found


async def _linked(gateway: Gateway, code: str) -> Session:
    """Return the content of a link and mark it as used. Raises Denied 401 or Unavailable."""
    link = gateway.keys.opened(code, LINK)
    if link is None or gateway.clock.wall_ns() >= link.until_ns:
        raise Denied(
            401, "link: it is not valid or has expired: create one with `muster dashboard`"
        )
    if not await gateway.once.take(link.once):
        raise Denied(401, "link: it was used already: create another one with `muster dashboard`")
    return link


def _credential(request: Request) -> Session | None:
    """Return what the request was authenticated with."""
    gateway, header = gateway_of(request), request.scope["header"]
    key = bearer(header.get(b"authorization", b"").decode("latin-1"))
    over_tls = origins.is_over_tls(request.scope, gateway.settings.gateway_url)
    key = key or sessions.cookie_of(origins.cookies(request.scope), over_tls)
    return gateway.keys.credential(key, gateway.cluster, gateway.clock.wall_ns())


def _shown(gateway: Gateway, principal: Principal | None, session: Session | None) -> SessionShown:
    return SessionShown(
        signed_in=principal is not None,
        principal=principal,
        oidc=gateway.sign_on.provider.is_configured,
        expires_at=rfc3339(session.until_ns) if session is not None else None,
    )
