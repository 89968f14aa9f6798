"""Requests that a browser sends with the session's cookie: only from pages of this gateway.

A browser adds the cookie by itself. So a request that is authenticated by cookie and changes
something, and each WebSocket, must carry the Origin of its own host; SameSite=Strict holds most
foreign requests back already. Requests with a key in the header need no Origin. Tests:
tests/attack/test_foreign_pages.py.
"""

from typing import Final

from starlette.types import Scope

from services.api_gateway.access import sessions
from services.api_gateway.access.sessions import is_own_origin
from services.api_gateway.problems import Denied

# Methods that change nothing.
SAFE: Final = ("GET", "HEAD", "OPTIONS")


def foreign(scope: Scope) -> Denied | None:
    """Return the denial of a request by cookie that does not come from a page of this gateway."""
    if scope["type"] == "http" and scope["method"] in SAFE:
        return None
    return None if is_own(scope) else denial(scope)


def is_own(scope: Scope) -> bool:
    """Return whether the request carries the Origin of its own host."""
    header = scope["header"]
    origin, host = (header.get(name, b"").decode("latin-1") for name in (b"origin", b"host"))
    return is_own_origin(origin, host, scope.get("scheme", "http"))


def is_over_tls(scope: Scope, url: str) -> bool:
    """Return whether the request came over TLS. `url`: MUSTER_GATEWAY_URL."""
    host = scope["header"].get(b"host", b"").decode("latin-1")
    return sessions.is_over_tls(scope.get("scheme", "http"), host, url)


def cookies(scope: Scope) -> str:
    """Return the cookies of a request; HTTP/2 clients may send several headers of them."""
    return "; ".join(v.decode("latin-1") for k, v in scope["headers"] if k == b"cookie")


def denial(scope: Scope) -> Denied:
    origin = scope["header"].get(b"origin", b"").decode("latin-1")[:256]
    source = f"a page of {origin}" if origin else "a request without the header Origin"
    return Denied(
        403,
        f"{source} may not act with the session's cookie: use a page of this gateway, or send the "
        "key in the header 'Authorization: Bearer <key>'",
    )
