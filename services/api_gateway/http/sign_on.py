"""/v1/session/oidc and /v1/session/device: sign in at the identity provider.

Pages go to the provider and come back with a code (authorization code with PKCE). A command line
shows a code that its user enters at the provider, and asks until that is done (RFC 8628); the
gateway asks the provider, because it has the client's secret. Tests:
tests/integration/test_sign_on.py and tests/attack/test_sign_on.py.
"""

import hashlib
import secrets
from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from libs.common.errors import Unavailable
from services.api_gateway.access.roles import Principal
from services.api_gateway.access.sessions import NS, Session, cookie_of, set_cookie
from services.api_gateway.gateway import Gateway
from services.api_gateway.http import origins
from services.api_gateway.http.answer_types import DeviceBegun, DeviceSignedOn
from services.api_gateway.http.queries import (
    Query,
    answer,
    body_of,
    documented,
    gateway_of,
    gateway_without_query,
    read,
)
from services.api_gateway.http.routing import APIRouter
from services.api_gateway.http.sessions import PRIVATE, cookie, is_secure, new_session, seal
from services.api_gateway.intents.fields import check_known
from services.api_gateway.problems import Denied, Problem
from services.api_gateway.sign_on.sign_on import (
    CALLBACK,
    COOKIE,
    DEVICE,
    SIGN_ON,
    SIGN_ON_S,
    Begun,
    checked_next,
)
from services.api_gateway.times import rfc3339

# Seconds between two questions of a command line, unless the provider says another number.
INTERVAL_S: Final = 5
INTERVAL_MAX_S: Final = 60

router = APIRouter(tags=["session"])


class NextQuery(Query, frozen=True):
    """`next`: the path of this gateway to which the browser goes after the sign-on."""

    next: str = "/"


@router.get("/v1/session/oidc", status_code=303, openapi_extra=documented(NextQuery))
async def begin(request: Request) -> Response:
    """Send the browser to the identity provider."""
    path = checked_next(read(request, NextQuery).next)
    gateway = _configured(request)
    _check_rate(request)
    begun, redirect_uri = Begun(), _redirect_uri(request)
    record = begun.record(path, redirect_uri, gateway.clock.wall_ns())
    settings = gateway.settings
    address = begun.address(
        await gateway.sign_on.provider.endpoint("authorization_endpoint"),
        settings.oidc_client_id,
        scopes=settings.oidc_scopes,
        redirect_uri=redirect_uri,
    )
    response = _redirect(address)
    response.headers.append("set-cookie", _record_cookie(request, seal(gateway, record)))
    return response


@router.get("/v1/session/oidc/callback", status_code=303)
async def finish(request: Request) -> Response:
    """Receive the browser from the identity provider, and set the session's cookie."""
    gateway = _configured(request)
    record = _record(request, gateway)
    given = request.query_params
    if not secrets.compare_digest(given.get("state", "").encode(), record.once.encode()):
        raise Denied(401, "state: it is not that of a sign-on in this browser: begin again at /")
    if given.get("iss", gateway.sign_on.provider.issuer) != gateway.sign_on.provider.issuer:
        raise Denied(401, "iss: another identity provider sent this answer: begin again at /")
    if not await gateway.once.take(f"sign-on-{record.once}"):
        raise Denied(401, "state: this sign-on was used already: begin again at /")
    if "error" in given or not given.get("code"):
        reason = given.get("error_description") or given.get("error") or "it sent no code"
        raise Denied(401, f"the identity provider did not sign you in: {reason[:256]}")
    more = record.more
    tokens = await gateway.sign_on.provider.exchanged(
        given["code"], more["verifier"], more["redirect_uri"]
    )
    claims = await gateway.sign_on.provider.claims(tokens, more["nonce"])
    session, _ = _signed_on(request, claims)
    response = _redirect(more["next"])
    response.headers.append("set-cookie", cookie(request, seal(gateway, session)))
    response.headers.append("set-cookie", _record_cookie(request, ""))
    return response


@router.post("/v1/session/device", status_code=201, openapi_extra=documented(Query))
async def begin_device(request: Request) -> Response:
    """Begin the sign-on of a command line: the user enters a code at the identity provider."""
    gateway_without_query(request)
    gateway = _configured(request)
    _check_rate(request)
    begun = await gateway.sign_on.provider.device_begun()
    device_code, user_code, address = (
        begun.get(name) for name in ("device_code", "user_code", "verification_uri")
    )
    if not isinstance(device_code, str) or not isinstance(user_code, str):
        raise Unavailable("the identity provider sent no device code: sign in with an API key")
    expires_s = min(SIGN_ON_S, _whole(begun.get("expires_in"), SIGN_ON_S))
    record = Session(
        purpose=DEVICE,
        until_ns=gateway.clock.wall_ns() + expires_s * NS,
        more={"code": device_code},
    )
    shown = DeviceBegun(
        device=seal(gateway, record),
        user_code=user_code,
        verification_uri=str(address),
        verification_uri_complete=str(begun.get("verification_uri_complete") or address),
        interval_s=min(INTERVAL_MAX_S, _whole(begun.get("interval"), INTERVAL_S)),
        expires_s=expires_s,
    )
    return answer(shown, 201, PRIVATE)


@router.post("/v1/session/device/token", openapi_extra=documented(Query, ("device",)))
async def finish_device(request: Request) -> Response:
    """Return the session of a command line; 202 while the user has not entered the code."""
    gateway_without_query(request)
    gateway, body = _configured(request), await body_of(request)
    fields = body if isinstance(body, dict) else {}
    check_known(fields, ("device",), "field")
    device = fields.get("device")
    record = gateway.keys.opened(device, DEVICE) if isinstance(device, str) else None
    if record is None or gateway.clock.wall_ns() >= record.until_ns:
        raise Denied(401, "device: it is not valid or has expired: run `muster login` again")
    code = record.more["code"]
    digest = hashlib.sha256(code.encode()).hexdigest()
    if not gateway.sign_on.polled.take(digest, gateway.clock.wall_ns()):
        text = f"this sign-on was asked for too often: ask every {INTERVAL_S} s"
        raise Problem(429, text, retry_after_s=60)
    why, tokens = await gateway.sign_on.provider.device_polled(code)
    if why:
        interval_s = 2 * INTERVAL_S if why == "slow_down" else 0
        waiting = DeviceSignedOn("", None, expires_at=None, interval_s=interval_s)
        return answer(waiting, 202, PRIVATE)
    session, principal = _signed_on(request, await gateway.sign_on.provider.claims(tokens, None))
    shown = DeviceSignedOn(
        seal(gateway, session), principal, expires_at=rfc3339(session.until_ns), interval_s=0
    )
    return answer(shown, 200, PRIVATE)


def _configured(request: Request) -> Gateway:
    """Return the gateway. Raises Problem 404 if it has no identity provider."""
    gateway = gateway_of(request)
    if not gateway.sign_on.provider.is_configured:
        raise Problem(
            404,
            "this cluster has no identity provider: sign in with an API key, or set "
            "MUSTER_OIDC_ISSUER",
        )
    return gateway


def _signed_on(request: Request, claims: Mapping[str, Any]) -> tuple[Session, Principal]:
    """Return the new session of a user and its principal. Raises Denied 403."""
    gateway = gateway_of(request)
    settings = gateway.settings
    source = gateway.sign_on.groups.source(
        claims, settings.oidc_user_claim, settings.oidc_groups_claim
    )
    found = gateway.sign_on.groups.principal(source, gateway.cluster)
    if isinstance(found, str):
        raise Denied(403, f"{found}: ask an administrator to change MUSTER_OIDC_GROUPS_FILE")
    request.scope["principal"] = found  # the access record names the user
    return new_session(gateway, source), found


def _record(request: Request, gateway: Gateway) -> Session:
    """Return the sign-on that this browser began. Raises Denied 401."""
    over_tls = origins.is_over_tls(request.scope, gateway.settings.gateway_url)
    found = cookie_of(origins.cookies(request.scope), over_tls, COOKIE)
    record = gateway.keys.opened(found, SIGN_ON)
    if record is None or gateway.clock.wall_ns() >= record.until_ns:
        raise Denied(
            401, "no sign-on is under way in this browser, or it took too long: begin again at /"
        )
    return record


def _redirect_uri(request: Request) -> str:
    base = gateway_of(request).settings.gateway_url.rstrip("/")
    return (base or f"{request.url.scheme}://{request.url.netloc}") + CALLBACK


def _redirect(address: str) -> Response:
    """Return a redirection. The provider does not learn the address of the page."""
    headers = {"location": address, "referrer-policy": "no-referrer", **PRIVATE}
    return Response(status_code=303, headers=headers)


def _record_cookie(request: Request, token: str) -> str:
    """Return the cookie of a sign-on under way. The provider's answer comes from another site."""
    age_s, secure = SIGN_ON_S if token else 0, is_secure(request)
    return set_cookie(token, age_s, secure=secure, strict=False, name=COOKIE)


def _check_rate(request: Request) -> None:
    """Raise Problem 429 if this address began too many sign-ons in this minute."""
    gateway, client = gateway_of(request), request.client
    if not gateway.sign_on.begun.take(client.host if client else "", gateway.clock.wall_ns()):
        text = "too many sign-ons began at this address in this minute: wait for the next one"
        raise Problem(429, text, retry_after_s=60)


def _whole(value: object, default: int) -> int:
    return value if isinstance(value, int) and value > 0 else default
