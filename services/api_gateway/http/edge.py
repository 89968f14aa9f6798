"""What every request passes before a route sees it: the key, the bound on its body, readiness, and its measurement.

Raw ASGI, for it runs on every request, and because a wrapping response object would hold back streams.
"""

import time
from typing import Final

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.api_gateway.gateway import Gateway
from services.api_gateway.problems import MEDIA_TYPE, Problem, render

BODY_BYTES_MAX: Final = 1 << 20
KEYED: Final = "/v1"
METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD")


class Edge:
    """The middleware."""

    def __init__(self, app: ASGIApp, gateway: Gateway) -> None:
        self.app = app
        self.gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.perf_counter()

        async def measured(message: Message) -> None:
            if message["type"] == "http.response.start":
                seconds = time.perf_counter() - began
                self.gateway.telemetry.answered(_method(scope), _route(scope), message["status"], seconds)
            await send(message)

        problem = self._refusal(scope)
        if problem is not None:
            await refuse(problem)(scope, receive, measured)
        else:
            await self.app(scope, _Bounded(receive).receive, measured)

    def _refusal(self, scope: Scope) -> Problem | None:
        path: str = scope["path"]
        if not (path == KEYED or path.startswith(KEYED + "/")):
            return None
        headers = Headers(scope=scope)
        if not self._authorised(headers.get("authorization", "")):
            return _unauthorised(bool(self.gateway.settings.api_keys_file))
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > BODY_BYTES_MAX:
            return _too_large()
        if not self.gateway.caught_up:
            return Problem(503, f"the gateway is still reading the log (at {self.gateway.cluster.seq}): try again in a moment")
        return None

    def _authorised(self, header: str) -> bool:
        scheme, _, key = header.partition(" ")
        return scheme.lower() == "bearer" and self.gateway.keys.name_of(key.strip()) is not None


class _Bounded:
    """A body without a stated length is counted as it comes."""

    def __init__(self, receive: Receive) -> None:
        self.inner = receive
        self.bytes = 0

    async def receive(self) -> Message:
        message = await self.inner()
        self.bytes += len(message.get("body", b""))
        if self.bytes > BODY_BYTES_MAX:
            raise _too_large()
        return message


def refuse(problem: Problem) -> Response:
    headers = {"www-authenticate": "Bearer"} if problem.status == 401 else {}
    return Response(render(problem), status_code=problem.status, media_type=MEDIA_TYPE, headers=headers)


def _unauthorised(configured: bool) -> Problem:
    if not configured:
        return Problem(401, "this gateway accepts no key: set MUSTER_API_KEYS_FILE to a file with the SHA-256 of each accepted key")
    return Problem(401, "the request carries no accepted key: send the header 'Authorization: Bearer <key>'")


def _too_large() -> Problem:
    return Problem(413, f"the request body is over {BODY_BYTES_MAX} bytes: send less at once")


def _method(scope: Scope) -> str:
    method: str = scope["method"]
    return method if method in METHODS else "OTHER"


def _route(scope: Scope) -> str:
    return str(getattr(scope.get("route"), "path", "none"))
