"""Cross-origin requests of browsers (CORS): refused by browsers unless origins are set.

Pure. With MUSTER_GATEWAY_CORS_ORIGINS the gateway tells browsers that pages of these origins may
send requests and read the answers. A page still needs a key: foreign pages cannot use the session's
cookie (`origins.py`), so they cannot act as their visitor. Tests:
tests/integration/test_gateway_cors.py.
"""

import re
from typing import Final

from starlette.types import Scope

from libs.common.errors import Refused
from services.api_gateway.access.roles import PROBES

ANY: Final = b"*"
ORIGIN: Final = re.compile(rb"https?://[a-z0-9.\[\]:-]{1,255}")
Headers = list[tuple[bytes, bytes]]
# Answers' headers that a page may read besides the usual ones.
EXPOSED: Final = (
    b"x-request-id, retry-after, x-muster-replica, openai-processing-ms, "
    b"x-ratelimit-limit-requests, x-ratelimit-remaining-requests, x-ratelimit-reset-requests, "
    b"x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens"
)
METHODS: Final = b"GET, POST, PUT, PATCH, DELETE, HEAD"
MAX_AGE_S: Final = b"600"


class Cors:
    """The origins whose pages may use the API; none by default."""

    def __init__(self, origins: str) -> None:
        self.origins = frozenset(
            each.strip().rstrip("/").lower().encode() for each in origins.split(",") if each.strip()
        )
        for origin in self.origins:
            if origin != ANY and not ORIGIN.fullmatch(origin):
                raise Refused(
                    f"MUSTER_GATEWAY_CORS_ORIGINS: {origin.decode()!r} is not an origin: give for "
                    "example https://chat.example.org, several separated by commas, or * for all"
                )

    def headers(self, scope: Scope) -> Headers:
        """Return the headers that let a page read the answer; none for other origins, and none for
        paths that need no key.
        """
        if not self.origins or scope["path"] in PROBES:
            return []
        origin = _header(scope, b"origin")
        if origin is None or not (ANY in self.origins or origin.lower() in self.origins):
            return []
        return [
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", EXPOSED),
            (b"vary", b"origin"),
        ]

    def preflight(self, scope: Scope) -> Headers | None:
        """Return the headers for a browser's question before a request; None for another request
        or origin.
        """
        if not self.origins or scope["method"] != "OPTIONS":
            return None
        headers = self.headers(scope)
        if not headers or _header(scope, b"access-control-request-method") is None:
            return None
        asked = _header(scope, b"access-control-request-headers") or b"authorization"
        return [
            *headers,
            (b"access-control-allow-methods", METHODS),
            (b"access-control-allow-headers", asked),
            (b"access-control-max-age", MAX_AGE_S),
        ]


def _header(scope: Scope, name: bytes) -> bytes | None:
    return next((value for given, value in scope["headers"] if given == name), None)
