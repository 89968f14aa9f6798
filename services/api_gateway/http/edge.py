"""The edge: request id, authentication, body bounds, readiness and measurement of every request.

It is raw ASGI, because it runs for every request, and a wrapping response object would hold back
streams. Requests of the OpenAI surface leave here, before the routes; their errors have OpenAI's
shape. All other errors are problem details.
"""

import re
import time
from os import urandom
from typing import Final, Protocol

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from libs.common.errors import Refused, Unavailable
from libs.common.open_share import OpenShare
from libs.common.spans import recording
from libs.common.spans.recording import Work
from services.api_gateway.access import roles
from services.api_gateway.access.auth import bearer
from services.api_gateway.access.roles import Principal
from services.api_gateway.access.sessions import cookie_of
from services.api_gateway.gateway import Gateway
from services.api_gateway.http import channels, origins, request_trace
from services.api_gateway.http.bounded_body import BoundedBody, too_large, uncounted_bytes
from services.api_gateway.http.cors import Cors
from services.api_gateway.http.edge_problems import starting, too_many, unauthorised
from services.api_gateway.http.forwarding import TrustedProxies
from services.api_gateway.http.places import places_by_files
from services.api_gateway.http.request_trace import TRACE_ID, RequestTrace, TraceBudget
from services.api_gateway.openai import app as openai
from services.api_gateway.openai import errors
from services.api_gateway.openai.clients import is_openai
from services.api_gateway.openai.routes import ROUTES
from services.api_gateway.problems import MEDIA_TYPE, Denied, Problem, render
from services.api_gateway.ws.serving import SocketApp
from services.api_gateway.ws.sockets import ROUTE as SOCKET

BODY_BYTES_MAX: Final = 1 << 20
# Largest body of a request that needs no key: to sign in, or to join a machine.
PUBLIC_BYTES_MAX: Final = 16 << 10
KEYED: Final = "/v1"
METRICS: Final = "/metrics"
JOIN: Final = "/join"
# The tenant that stands for all requests without a key, and the routes that such requests use.
STRANGERS: Final = ""
OPEN_TO_STRANGERS: Final = tuple(path for path in roles.PUBLIC if path not in roles.PROBES)
# The only route whose body may be larger.
UPLOADS: Final = "/v1/uploads/"
# After an answer with one of these statuses the rest of the request is not read.
UNREAD: Final = (408, 413)
# Retry-After of an answer 503 that names no other time: about as long as an election of the log.
UNAVAILABLE_S: Final = 5
METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD")
# Messages that begin an answer.
STARTS: Final = ("http.response.start", "websocket.http.response.start")
# Headers that a request may have once.
ONCE: Final = ("Host", "Authorization")
# Estimated time of all processes for a piece of a streamed answer, and for each byte of it: it is
# read or encoded, goes over the bus, is decoded, and goes out.
PIECE_S: Final = 50e-6
BYTE_S: Final = 16e-9
VARIANTS: Final = "89ab"  # the first digits of a random UUID's fourth group
REQUEST_ID: Final = re.compile(rb"[\w.:-]{1,128}", re.ASCII)


class Access(Protocol):
    """The recorder of requests that need a key.

    `note` is called once per request, when its answer begins, or when it ended without one (status
    0). `denied` is the reason of a denial, else empty.
    """

    def note(
        self, scope: Scope, principal: Principal | None, route: str, status: int, denied: str
    ) -> None: ...


class Edge:
    """The outermost app.

    It puts `header` (the last value of each header by its name), `request_id` and `principal` into
    the scope. A denial puts its reason there as `denied`.
    """

    def __init__(self, app: ASGIApp, gateway: Gateway, access: Access) -> None:
        self.app = app
        self.gateway = gateway
        self.access = access
        self.open = OpenShare(places_by_files().most)
        self.cors = Cors(gateway.settings.gateway_cors_origins)
        self.proxies = TrustedProxies(gateway.settings.gateway_trusted_proxies)
        self.openai = openai.OpenAI(gateway)
        self.channels = channels.Channels(gateway)
        self.sockets = SocketApp(gateway, self, access.note)
        self.traces = TraceBudget()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._channel(scope, receive, send)
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if self.cors.origins and (allowed := self.cors.preflight(scope)) is not None:
            await send({"type": "http.response.start", "status": 204, "headers": allowed})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        route = openai.route_of(scope["path"])
        passage = _Passage(self, scope, send, route or "")
        problem = self._refusal(scope, passage, route) or passage.enter()
        work = self._answered(passage, receive, route, problem)
        account = _account(scope)
        if account is None or not self.gateway.caught_up:
            await work
        else:
            spent_s = time.perf_counter() - passage.began
            await self.gateway.time_shares.in_share(account, work, spent_s)

    async def _answered(
        self, passage: "_Passage", receive: Receive, route: str | None, problem: Problem | None
    ) -> None:
        scope = passage.scope
        body: BoundedBody | None = None
        try:
            if problem is not None:
                await refuse(problem, scope)(scope, receive, passage.send)
            elif route is not None:
                await self.openai(scope, receive, passage.send)
            else:
                body = self._bounded(scope, receive)
                await self.app(scope, body.receive, passage.send)
        finally:
            if body is not None:
                body.close()
            passage.end()

    async def _channel(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a WebSocket. Refusals before it is accepted are ordinary HTTP answers."""
        scope["method"] = "GET"
        route = SOCKET if scope["path"] == SOCKET else channels.route_of(scope)
        passage = _Passage(self, scope, send, route or "")
        problem = self._refusal(scope, passage, route)
        try:
            if problem is None and route is None:
                problem = Problem(404, f"{scope['path'][:200]}: no such WebSocket: see /docs")
            if problem is None and route == SOCKET:
                await self.sockets(scope, receive, passage.send)
            elif problem is None and route is not None:
                await self.channels(scope, receive, passage.send, route)
        except Denied as error:
            scope["denied"] = error.detail
            problem = error
        except (Problem, Refused, Unavailable) as error:
            problem = channels.problem_of(error)
        finally:
            if problem is not None:
                await refuse(problem, scope)(scope, receive, passage.send)
            passage.end()

    def _refusal(self, scope: Scope, passage: "_Passage", route: str | None) -> Problem | None:
        path: str = scope["path"]
        authorization, length, twice = passage.headers()
        if twice:
            return Problem(400, f"the header {twice} is in the request twice: send it once")
        if route is None and not (path == KEYED or path.startswith(KEYED + "/")):
            return None
        gateway = self.gateway
        key = bearer(authorization)
        by_cookie = not key and b"cookie" in scope["header"]
        if by_cookie:
            over_tls = origins.is_over_tls(scope, gateway.settings.gateway_url)
            key = cookie_of(origins.cookies(scope), over_tls)
        principal, why = gateway.keys.principal(key, gateway.cluster, gateway.clock.wall_ns())
        if route == SOCKET and not key and gateway.caught_up:
            return None  # the first message has the key
        scope["principal"], scope["key"] = principal, key
        if not gateway.caught_up:
            return starting(gateway.cluster.seq)
        if principal is None:
            if path in roles.PUBLIC:
                return None
            scope["denied"] = why
            return unauthorised(bool(gateway.settings.api_keys_file), bool(key))
        if by_cookie and (foreign := origins.foreign(scope)) is not None:
            scope["denied"] = foreign.detail
            return foreign
        if route is not None:
            denial = roles.denial(principal, scope["method"], route)
            if denial is not None:
                scope["denied"] = denial.detail
                return denial
        elif length.isdigit() and int(length) > self._bytes_max(path):
            return too_large(self._bytes_max(path))
        return None

    def _bounded(self, scope: Scope, receive: Receive) -> BoundedBody:
        """Bound the request's body.

        Uploads have no time limit here, and do not count: their route bounds them, on disk.
        """
        path: str = scope["path"]
        bytes_max = self._bytes_max(path)
        if path.startswith(UPLOADS):
            return BoundedBody(receive, bytes_max, None)
        within_s, share = self.gateway.settings.model_body_ms / 1_000, self.gateway.shares.bytes
        tenant, uncounted = _account(scope) or STRANGERS, uncounted_bytes(scope["method"], path)
        return BoundedBody(receive, bytes_max, within_s, share, tenant, uncounted)

    def _bytes_max(self, path: str) -> int:
        if path in roles.PUBLIC:
            return PUBLIC_BYTES_MAX
        return self.gateway.settings.upload_bytes if path.startswith(UPLOADS) else BODY_BYTES_MAX


class _Passage:
    """One request through the edge: measured and recorded when its answer begins."""

    __slots__ = (
        "account",
        "began",
        "edge",
        "inner",
        "is_model",
        "route",
        "scope",
        "status",
        "tenant",
        "trace",
    )

    def __init__(self, edge: Edge, scope: Scope, send: Send, route: str) -> None:
        self.edge, self.scope, self.inner, self.route = edge, scope, send, route
        self.began = time.perf_counter()
        self.status = 0
        self.tenant = ""
        self.account: str | None = None
        self.trace: RequestTrace | None = None
        self.is_model = bool(route)

    def enter(self) -> Problem | None:
        """Count the request among its tenant's; return the problem if those are too many.

        Requests without a key count as those of one tenant, and probes of health not at all.
        """
        principal: Principal | None = self.scope.get("principal")
        if principal is None and self.scope["path"] not in OPEN_TO_STRANGERS:
            return None
        account = STRANGERS if principal is None else principal.tenant
        if self.edge.open.take(account):
            return too_many(account)
        self.account = account
        if principal is None:
            return None
        self.tenant = principal.tenant
        if recording.active is not None:
            self._trace()
        return None

    def _trace(self) -> None:
        """Begin the request's span, and let this task's messages carry it on."""
        is_model = self.route in ROUTES
        trace = self.trace = request_trace.begin(
            self.scope, self.edge.traces, is_model, self.tenant
        )
        # Also None: a task may serve several requests.
        recording.current.set(None if trace is None else Work(trace.context))
        if trace is not None:
            self.scope["trace"] = trace

    def headers(self) -> tuple[str, bytes, str]:
        """Return the authorisation, the body's length, and a header that wrongly occurs twice.

        Puts the headers by name, the client behind proxies, and the request's id, its own or a
        new one, into the scope.
        """
        self.edge.proxies.note(self.scope)
        given = self.scope["headers"]
        header = self.scope["header"] = dict(given)
        request_id = header.get(b"x-request-id", b"")
        self.scope["request_id"] = (
            request_id.decode() if REQUEST_ID.fullmatch(request_id) else new_request_id()
        )
        authorization = header.get(b"authorization", b"").decode("latin-1")
        twice = _twice([name for name, _ in given]) if len(header) < len(given) else ""
        return authorization, header.get(b"content-length", b"0"), twice

    async def send(self, message: Message) -> None:
        kind = message["type"]
        if kind == "websocket.accept":
            self._answered(101)
        elif kind in STARTS:
            status = message["status"]
            self._answered(status)
            headers = [*message.get("headers", ())]
            headers.append((b"x-request-id", self.scope["request_id"].encode()))
            if self.trace is not None:
                headers.append((TRACE_ID, self.trace.context.trace_id.encode()))
            if self.edge.cors.origins:
                headers += self.edge.cors.headers(self.scope)
            if status in UNREAD:
                headers.append((b"connection", b"close"))
            message["headers"] = headers
        elif message.get("more_body") and not self.is_model:
            await self._turn(len(message["body"]))
        await self.inner(message)

    async def _turn(self, size: int) -> None:
        """Charge a piece of a streamed answer, which a task of its own makes, to its tenant."""
        spent_s = PIECE_S + size * BYTE_S
        await self.edge.gateway.time_shares.turn(_account(self.scope) or "", spent_s)

    def _answered(self, status: int) -> None:
        self.status = status
        route = self.route = self.route or _route(self.scope)
        self.edge.gateway.telemetry.answered(
            _method(self.scope),
            route,
            status,
            seconds=time.perf_counter() - self.began,
            trace_id="" if self.trace is None else self.trace.context.trace_id,
        )
        self._note(status)

    def end(self) -> None:
        if self.account is not None:
            self.edge.open.give_back(self.account)
        if self.trace is not None:
            route = self.route or _route(self.scope)
            self.trace.end(self.scope, route, self.status, self.tenant)
        if not self.status:
            self._note(0)

    def _note(self, status: int) -> None:
        scope = self.scope
        if "principal" in scope and not scope.get("noted"):
            self.edge.access.note(
                scope,
                scope["principal"],
                route=self.route or _route(scope),
                status=status,
                denied=scope.get("denied", ""),
            )


def _twice(names: list[bytes]) -> str:
    """Return the header that occurs twice although it must not; empty if none does."""
    return next((each for each in ONCE if names.count(each.lower().encode()) > 1), "")


def _account(scope: Scope) -> str | None:
    """Return the tenant whose share of time a request uses.

    Strangers have one share together. Probes of health and pages without a key have none.
    """
    principal: Principal | None = scope.get("principal")
    if principal is not None:
        return principal.tenant
    path: str = scope["path"]
    return "" if path.startswith((KEYED, JOIN)) or path == METRICS else None


def new_request_id() -> str:
    """Return a random UUID, because some model servers refuse every other form."""
    text = urandom(16).hex()
    variant = VARIANTS[int(text[16], 16) & 3]
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-{variant}{text[17:20]}-{text[20:]}"


def refuse(problem: Problem, scope: Scope) -> Response:
    """Return the answer for a problem: problem details, or OpenAI's shape for OpenAI clients."""
    if is_openai(scope):
        error = errors.of_problem(problem)
        return Response(
            errors.render(error),
            error.status,
            headers={name.decode(): value.decode() for name, value in error.headers},
            media_type="application/json",
        )
    headers = {"www-authenticate": "Bearer"} if problem.status == 401 else {}
    retry_after_s = problem.more.get("retry_after_s", UNAVAILABLE_S if problem.status == 503 else 0)
    if retry_after_s:
        headers["retry-after"] = str(retry_after_s)
    return Response(
        render(problem), status_code=problem.status, media_type=MEDIA_TYPE, headers=headers
    )


def _method(scope: Scope) -> str:
    method: str = scope["method"]
    return method if method in METHODS else "OTHER"


def _route(scope: Scope) -> str:
    return str(getattr(scope.get("route"), "path", "none"))
