"""Carries out calls: reads messages, runs the gateway's own app, and sends what it answers.

A key is checked before a message is read, and one tenant has a bounded part of the open calls, so
strangers make this process keep nothing. The app checks the key again, with everything else.
Tests: tests/integration/test_rpc_calls.py and tests/attack/test_rpc.py.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from typing import Any, Final

import grpc
from starlette.types import ASGIApp, Scope

from libs.common.errors import Refused, Unavailable
from libs.common.life.job_life import ENDED
from libs.common.open_share import BUSY_S, OpenShare
from services.api_gateway.access.roles import Principal
from services.api_gateway.gateway import Gateway
from services.api_gateway.http.edge import new_request_id
from services.api_gateway.openai.call import EVENT_STREAM, MEDIA
from services.api_gateway.openai.routes import ROUTES
from services.api_gateway.problems import Problem
from services.api_gateway.rpc import message_types, status, streams
from services.api_gateway.rpc.call import Call, Ended
from services.api_gateway.rpc.conversion import Fields
from services.api_gateway.rpc.exchange import Exchange, Pipe, report
from services.api_gateway.rpc.held_bytes import HeldBytes
from services.api_gateway.rpc.methods import Kind, Method
from services.api_gateway.rpc.requests import Asked, asked

# Calls of all tenants that are open at one time.
CALLS_MAX: Final = 8_192
# One wait for a job's next state. Waits are repeated until the call ends.
POLL_S: Final = 20.0
# A piece of a file fits into the 4 MiB that clients accept.
PIECE_BYTES: Final = 1 << 20
# One event of a model's stream: as large as the message that clients accept.
MODEL_EVENT_BYTES_MAX: Final = 4 << 20


class Calls:
    """The calls of one gateway. `app` is the app that serves HTTP."""

    def __init__(self, gateway: Gateway, app: ASGIApp) -> None:
        self.gateway = gateway
        self.app = app
        self.open = OpenShare(CALLS_MAX)
        self.bytes = OpenShare(gateway.settings.gateway_grpc_bytes)
        self.is_stopping = False
        self._running: dict[asyncio.Task[None], Exchange] = {}
        self._streams: dict[Exchange, None] = {}
        self.kinds: dict[Kind, Callable[[Call], Awaitable[None]]] = {
            Kind.ONE: self._one,
            Kind.RAW: self._one,
            Kind.POLLED: self._polled,
            Kind.BYTES: self._bytes,
            Kind.LINES: self._lines,
            Kind.EVENTS: self._events,
            Kind.UPLOAD: self._upload,
            Kind.CALL: self._call_model,
        }

    async def serve(self, method: Method, context: Any) -> None:  # noqa: ANN401  of gRPC
        """Carry out one call, to its end."""
        call = Call(self.gateway.settings, method, context)
        try:
            await self._admitted(call)
        except Ended as ended:
            refusal = ended.refusal
        except Unavailable as error:
            code = 502 if isinstance(error, streams.Oversized) else 503
            broken = Ended(status.of_problem(Problem(code, str(error))))
            refusal = (self.stopping() if self.is_stopping else broken).refusal
        except (grpc.aio.UsageError, grpc.aio.InternalError):
            return  # the client has gone
        else:
            return
        await context.abort(refusal.code, refusal.detail, refusal.metadata)

    def stop(self) -> None:
        """End all streams with the status UNAVAILABLE. Other calls may finish."""
        self.is_stopping = True
        for exchange in list(self._streams):
            exchange.leave()

    async def drain(self, within_s: float) -> None:
        """Wait for the app's end of all calls, at most `within_s`; then cancel the rest."""
        if self._running:
            _, late = await asyncio.wait(list(self._running), timeout=within_s)
            for task in late:
                task.cancel()

    async def _admitted(self, call: Call) -> None:
        if self.is_stopping:
            raise self.stopping()
        gateway = self.gateway
        principal, _ = gateway.keys.principal(call.key, gateway.cluster, gateway.clock.wall_ns())
        if principal is None or not gateway.caught_up:
            await self._refuse_stranger(call)
            return
        if self.open.take(principal.tenant):
            raise self._noted(call, principal, _too_many(principal.tenant))
        call.held = HeldBytes(self.bytes, principal.tenant)
        try:
            await self.kinds[call.method.kind](call)
        except (Refused, Problem) as error:
            raise self._noted(call, principal, error) from error
        finally:
            call.held.close()
            self.open.give_back(principal.tenant)

    async def _refuse_stranger(self, call: Call) -> None:
        """Let the app refuse a call without a key. Raises Ended."""
        exchange = self.begin(call, call.scope(Asked(call.method.path, b"", b"", [])))
        raise Ended(await self._refused(exchange))

    def _noted(self, call: Call, principal: Principal, error: Refused | Problem) -> Ended:
        """Record a call that the app never saw, and return its end."""
        problem = error if isinstance(error, Problem) else Problem(422, str(error))
        scope = call.scope(Asked(call.method.path, b"", b"", []))
        scope["request_id"] = new_request_id()
        self.gateway.access.note(scope, principal, call.method.path, problem.status, "")
        return Ended(status.of_problem(problem, scope["request_id"]))

    def stopping(self) -> Ended:
        """Return the end of a call at a gateway that stops."""
        text = "this gateway stops: call another one, or this one again in a moment"
        return Ended(status.of_problem(Problem(503, text)))

    def begin(
        self,
        call: Call,
        scope: Scope,
        body: bytes = b"",
        given: Pipe[bytes] | None = None,
        app: ASGIApp | None = None,
    ) -> Exchange:
        """Give a request to the app."""
        exchange = Exchange(app or self.app, scope, body=body, given=given, held=call.held)
        self._running[exchange.task] = exchange

        def over(task: asyncio.Task[None]) -> None:
            self._running.pop(task, None)
            report(task, call.method.full_name)

        exchange.task.add_done_callback(over)
        if call.method.kind.streams_answers:
            self._streams[exchange] = None
            exchange.task.add_done_callback(lambda _: self._streams.pop(exchange, None))
        return exchange

    def _ask(self, call: Call, request: Asked) -> Exchange:
        return self.begin(call, call.scope(request), request.body)

    async def _refused(self, exchange: Exchange) -> status.Refusal:
        """Return the refusal that the app answers with."""
        await exchange.begun()
        if self.is_stopping and not exchange.status:
            return self.stopping().refusal
        body = await exchange.whole() if exchange.status else b""
        headers = exchange.headers
        return status.refusal(
            exchange.status if exchange.status >= 400 else 500,
            body,
            headers.get(status.REQUEST_ID, ""),
            headers.get("retry-after", ""),
        )

    async def accepted(self, call: Call, exchange: Exchange) -> None:
        """Wait until the answer has begun; raise Ended unless it is a success.

        The answer's headers become metadata: at once for a stream, else beside the answer.
        """
        await exchange.begun()
        if not 200 <= exchange.status < 300:
            raise Ended(await self._refused(exchange))
        shown = (status.REQUEST_ID, *status.SHOWN)
        metadata = tuple(
            (name, exchange.headers[name]) for name in shown if name in exchange.headers
        )
        if call.method.kind.streams_answers:
            await call.context.send_initial_metadata(metadata)
        else:
            call.context.set_trailing_metadata(metadata)

    # The kinds of methods.

    async def _one(self, call: Call) -> None:
        await self._answered(call, self._ask(call, asked(call.method, await call.fields())))

    async def _answered(self, call: Call, exchange: Exchange) -> None:
        """Send an answer as one message."""
        try:
            await self.accepted(call, exchange)
            body = await self._whole(call, exchange)
            await call.write(self._shown(call, body))
        finally:
            exchange.leave()

    async def _whole(self, call: Call, exchange: Exchange) -> bytes:
        """Return a whole answer. Raises Ended if a model's server sent what is no JSON."""
        if not _is_of_model(call.method):
            return await exchange.whole()
        found = exchange.headers.get("content-type", "").lower()
        if found.startswith((EVENT_STREAM, *MEDIA)):
            text = (
                f"the model's server answered {call.method.name} with {found[:64]}, and not with "
                "JSON: use CallModel, which passes on every kind of answer"
            )
            request_id = exchange.headers.get(status.REQUEST_ID, "")
            raise Ended(status.of_problem(Problem(502, text), request_id))
        return await exchange.whole(self.gateway.settings.model_answer_bytes)

    def _shown(self, call: Call, body: bytes) -> Fields:
        """Return the fields of an answer; those of a model keep the server's own text."""
        found = streams.parsed(body) or {}
        return {**found, "json": body} if _is_of_model(call.method) else found

    async def _polled(self, call: Call) -> None:
        fields, state = await call.fields(), ""
        longest_s = min(POLL_S, self.gateway.settings.wait_max_ms / 1_000)
        while state not in ENDED:
            more = {"state": state, "timeout_s": longest_s} if state else {"timeout_s": 0}
            exchange = self._ask(call, asked(call.method, fields | more))
            try:
                await exchange.begun()
                if exchange.status != 200:
                    raise Ended(await self._refused(exchange))
                job = streams.parsed(await exchange.whole()) or {}
            finally:
                exchange.leave()
            if self.is_stopping:
                raise self.stopping()
            if job.get("state") not in (None, state):
                state = str(job["state"])
                await call.write(job)

    async def _streamed(self, call: Call, exchange: Exchange) -> AsyncGenerator[bytes, None]:
        """Return the pieces of a stream. Raises Ended, and Unavailable if it breaks off."""
        try:
            await self.accepted(call, exchange)
            async for piece in exchange.pieces():
                yield piece
            if self.is_stopping:
                raise self.stopping()
        finally:
            exchange.leave()

    async def _bytes(self, call: Call) -> None:
        exchange = self._ask(call, asked(call.method, await call.fields()))
        async with aclosing(self._streamed(call, exchange)) as pieces:
            async for piece in pieces:
                for part in _parts(piece):
                    await call.write({"data": part})

    async def _lines(self, call: Call) -> None:
        exchange, lines = self._ask(call, asked(call.method, await call.fields())), streams.Lines()
        async with aclosing(self._streamed(call, exchange)) as pieces:
            async for piece in pieces:
                for line in lines.add(piece):
                    if found := streams.parsed(line):
                        await call.write(found)
                call.keep(lines.size)

    async def _events(self, call: Call) -> None:
        exchange = self._ask(call, asked(call.method, await call.fields()))
        try:
            await exchange.begun()
            kind = exchange.headers.get("content-type", "").lower()
            if 200 <= exchange.status < 300 and not kind.startswith(EVENT_STREAM):
                await self._answered(call, exchange)  # a model's server that does not stream
            else:
                await self._served(call, exchange)
        finally:
            exchange.leave()

    async def _served(self, call: Call, exchange: Exchange) -> None:
        """Send each server-sent event of an answer as a message."""
        bound = MODEL_EVENT_BYTES_MAX if _is_of_model(call.method) else streams.FRAME_BYTES_MAX
        events = streams.ServedEvents(bound)
        async with aclosing(self._streamed(call, exchange)) as pieces:
            async for piece in pieces:
                for served in events.add(piece):
                    if (found := _event(call.method, served)) is not None:
                        await call.write(found)
                call.keep(events.size)

    async def _upload(self, call: Call) -> None:
        first = await call.fields()
        request = asked(call.method, {"sha256": first.get("sha256", "")})
        fed = self._fed(call, call.scope(request), first.get("data", b""))
        async with aclosing(fed) as answer:
            body = b"".join([piece async for piece in answer])
        await call.write(self._shown(call, body))

    async def _call_model(self, call: Call) -> None:
        first = await call.fields()
        path = first.get("path", "")
        if path not in ROUTES:
            raise Problem(
                404,
                f"path: {path[:64]!r} is no endpoint of models: give one of {', '.join(ROUTES)}",
            )
        given_type = str(first.get("content_type") or "application/json")
        headers = [(b"content-type", given_type.encode("latin-1", "replace"))]
        scope = call.scope(Asked(path, b"", b"", headers))
        async with aclosing(self._fed(call, scope, first.get("data", b""))) as answer:
            async for piece in answer:
                for part in _parts(piece):
                    await call.write({"data": part})

    async def _fed(self, call: Call, scope: Scope, first: bytes) -> AsyncGenerator[bytes, None]:
        """Send the client's pieces to the app, and return those of the answer."""
        given: Pipe[bytes] = Pipe()
        exchange = self.begin(call, scope, first, given)
        feeding = asyncio.get_running_loop().create_task(_feed(call, given))
        feeding.add_done_callback(lambda task: exchange.leave() if _fault(task) else None)
        try:
            await self.accepted(call, exchange)
            if call.method.kind is Kind.CALL:
                await call.write({"content_type": exchange.headers.get("content-type", "")})
            async for piece in exchange.pieces():
                yield piece
            if self.is_stopping and call.method.kind is Kind.CALL:
                raise self.stopping()
        finally:
            feeding.cancel()
            exchange.leave()
            if fault := _fault(feeding):
                raise fault


def _too_many(tenant: str) -> Problem:
    text = (
        f"tenant {tenant} has as many calls open at this gateway as one tenant may have now: wait "
        "until some have ended, or use another gateway"
    )
    return Problem(429, text, retry_after_s=BUSY_S)


def _parts(piece: bytes) -> Iterator[bytes]:
    for begin in range(0, len(piece), PIECE_BYTES):
        yield piece[begin : begin + PIECE_BYTES]


async def _feed(call: Call, given: Pipe[bytes]) -> None:
    while (data := await call.read()) is not None:
        if piece := call.decoded(data).get("data"):
            call.held.take(len(piece))
            await given.put(piece)
    await given.put(b"")


def _fault(feeding: asyncio.Task[None]) -> Problem | None:
    """Return the fault of the client's pieces, if they had one."""
    if not feeding.done() or feeding.cancelled():
        return None
    error = feeding.exception()
    return error if isinstance(error, Problem) else None


def _is_of_model(method: Method) -> bool:
    return method.service == "Inference" and method.asks is not None


def _event(method: Method, served: streams.Served) -> Fields | None:
    """Return the fields of an event's message. Raises Ended for a model's error."""
    if method.answers is message_types.Change:
        return streams.change_of(served)
    if served.data == streams.DONE or (found := streams.parsed(served.data)) is None:
        return None
    if not _is_of_model(method):
        return found
    if "error" in found:
        raise Ended(status.refusal(502, served.data))
    return {**found, "json": served.data}
