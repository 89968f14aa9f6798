"""One request, from its body to the last byte of its answer.

The gateway sends nothing to the client before it has a stream's first event, or the whole of
another answer. Until then a failed replica costs the client only time. Later a failure can only be
reported within the stream. Tests: tests/integration/test_openai_*.py.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Final

import aiohttp
from starlette.types import Scope, Send

from services.api_gateway.openai import errors, reading
from services.api_gateway.openai.body import Kept
from services.api_gateway.openai.continuation import Continuation
from services.api_gateway.openai.errors import ApiError
from services.api_gateway.openai.events import DONE_EVENT, TOKENS_MAX, Events, Usage, usage_of
from services.api_gateway.openai.form_body import FormBody
from services.api_gateway.openai.guard import Guard
from services.api_gateway.openai.metering import UNLIMITED, Grant
from services.api_gateway.openai.replica_exchange import NO_TYPE, Answered
from services.api_gateway.openai.replica_failure import Answer, ReplicaFailed
from services.api_gateway.openai.request import RequestFields, choices_of, with_model
from services.api_gateway.openai.request_spans import NOT_TRACED, RequestSpans, Traced
from services.api_gateway.openai.routes import ROUTES

EVENT_STREAM: Final = "text/event-stream"
EVENT: Final = b"data:"
LATER_EVENT: Final = b"\n" + EVENT
JSON: Final = "application/json"
# Answers of these types are relayed as they come.
MEDIA: Final = ("audio/", "video/", "image/", "application/octet-stream")
# The request of a whole answer above this size stays open until the client has read most of it.
LONG_BYTES: Final = 64 << 10
# How long a client may take to read the error at the end of a broken stream.
LAST_WORDS_S: Final = 5.0
BUSY: Final = (502, 503)
# The statuses of an answer; interim answers (1xx) are not passed on.
OK: Final = 200
STATUS_MAX: Final = 599
# An answer with this status or a higher one has no tokens.
CLIENT_ERROR: Final = 400
# An answer with this status or a higher one does not show that the replica is alive.
SERVER_ERROR: Final = 500
UNFINISHED: Final = ApiError(
    502,
    "the model's replica ended its stream before a finish_reason and before [DONE]",
    "upstream_error",
)
NO_CACHE: Final = (b"cache-control", b"no-cache")


def _ignore_answer(events: int) -> None:
    """Do nothing: no listener is set yet."""


def ignore_begin() -> None:
    """Do nothing: nothing ends when the answer begins."""


class Call:
    """The state of one request.

    `status` is the status of the client's answer, 0 until then. `tokens` are those that replicas
    counted, None while unknown; `usage` is the present replica's own count. At most `tokens_max`
    count. `events` counts those of streams. `heard` is called when a replica sends something that
    is not a failure, with its number of events with tokens; `begins` when the client's answer
    begins. `is_held`: the client of a stream got comments already. `model` is the deployed model
    that the name in the body stands for, `adapter` one of its adapters. `is_guest`: the model is
    another tenant's, so its replicas are not named to the client. With `continuation` the
    stream may go on at another replica; `moves_on`: it broke at its replica, and shall. `kept`
    counts the bytes that are held. `is_long`: the answer ends when most of it is read.
    """

    grant: Grant = UNLIMITED
    metered = False
    strips_usage = False
    tokens: int | None = 0
    tokens_max = TOKENS_MAX
    events = 0
    status = 0
    streaming = False
    is_held = False
    is_guest = False
    is_media = False
    first_s = 0.0
    usage: Usage | None = None
    continuation: Continuation | None = None
    moves_on = False
    kept: Kept | None = None
    is_long = False
    spans: RequestSpans = NOT_TRACED

    def __init__(
        self,
        scope: Scope,
        send: Send,
        path: str,
        fields: RequestFields,
        model: str,
        body: bytes,
        answer_bytes_max: int,
        form: FormBody | None = None,
        adapter: str = "",
    ) -> None:
        self.scope, self.send, self.path, self.fields, self.body, self.answer_bytes_max = (
            scope,
            send,
            path,
            fields,
            body,
            answer_bytes_max,
        )
        self.model = model
        self.adapter = adapter
        self.form = form
        self.route = ROUTES[path]
        if (trace := scope.get("trace")) is not None:
            self.spans = Traced(trace, path, model, adapter)
        self.began_s = time.perf_counter()
        self.heard: Callable[[int], None] = _ignore_answer
        self.begins: Callable[[], None] = ignore_begin

    def text(self) -> bytes:
        """Return the text of the prompt; the whole body where no field is known to be one."""
        return self.fields.text(self.path) or self.body

    @property
    def can_repeat(self) -> bool:
        """True if another replica can get the whole body."""
        return self.form is None or self.form.can_repeat

    def body_for(self, expected: str) -> bytes | AsyncIterator[bytes]:
        """Return the body with the model's name as the replica's server knows it."""
        if self.form is not None:
            return self.form.pieces(expected)
        return self.body if expected == self.fields.model else with_model(self.body, expected)

    async def relay(
        self,
        response: Answered,
        guard: Guard,
        idle_s: float,
        replica: str,
        first: bytes = b"",
    ) -> None:
        """Send the replica's answer to the client. `first` are bytes of it that were read before.

        Raises ReplicaFailed while nothing was sent, and one of FAILURES if the replica's answer
        cannot be read.
        """
        if not OK <= response.status <= STATUS_MAX:
            raise ReplicaFailed(f"answered with status {response.status}")
        if self.status and (
            response.content_type != EVENT_STREAM or response.status >= CLIENT_ERROR
        ):
            raise ReplicaFailed(
                f"answered {response.status} instead of continuing",
                is_alive=True,
                is_free=response.status >= CLIENT_ERROR,
            )
        if response.content_type == EVENT_STREAM:
            await self._relay_stream(response, guard, idle_s, replica, first)
        elif self._is_media(response):
            await self._relay_media(response, guard, idle_s, replica, first)
        else:
            await self._relay_whole(response, replica, first)

    def _is_media(self, response: Answered) -> bool:
        """Return whether the answer is relayed as it comes; a stream with comments cannot be."""
        is_media = response.content_type.startswith(MEDIA) and response.status < CLIENT_ERROR
        return is_media and not self.is_held

    async def _relay_whole(self, response: Answered, replica: str, first: bytes) -> None:
        answer = Answer(
            status=response.status,
            content_type=response.headers.get("content-type", JSON),
            body=first or await self.read(response.content),
            retry_after=response.headers.get("retry-after", ""),
            replica=replica,
        )
        if answer.status < SERVER_ERROR:
            self.heard(0)
        if answer.status in BUSY:
            raise ReplicaFailed(f"answered {answer.status}", answer)
        self._count(usage_of(answer.body))
        await self.finish(answer, replica)

    async def read(self, content: aiohttp.StreamReader) -> bytes:
        """Return a whole answer.

        Raises ApiError 502 if it is too large, and those of `kept`.
        """
        return await reading.whole(content, self.answer_bytes_max, self.kept)

    async def finish(self, answer: Answer, replica: str = "") -> None:
        """Send a complete answer to the client; an error is put into OpenAI's shape."""
        body, kind = answer.body, answer.content_type
        if self.is_held:
            await self._finish_held(answer)
            return
        if answer.status >= 400:
            shaped = errors.shaped(answer.status, body, self._named(replica or answer.replica))
            body, kind = shaped, kind if shaped is body else JSON
        headers = [(b"content-length", b"%d" % len(body))]
        if answer.retry_after:
            headers.append((b"retry-after", answer.retry_after.encode("latin-1", "replace")))
        await self._begin(answer.status, kind, headers, replica)
        await self._send_last(body)

    async def _send_last(self, body: bytes) -> None:
        """Send the rest of an answer; `close` ends it if it is long."""
        self.is_long = len(body) > LONG_BYTES
        await self.send({"type": "http.response.body", "body": body, "more_body": self.is_long})

    async def close(self) -> None:
        """End a long answer when the client has read most of it, or has left.

        Until then its request counts as open, and so do its bytes. The replica is free before.
        """
        if self.is_long:
            await self.send({"type": "http.response.body", "body": b"", "more_body": False})

    async def comment(self, text: str) -> None:
        """Send a comment to the client of a stream that waits; the first one begins its answer."""
        await self._hold(b": %s\n\n" % text.encode())

    async def _hold(self, lines: bytes) -> None:
        """Send lines without an event. The request can still be tried at another replica."""
        if not self.is_held:
            headers = [(b"content-type", EVENT_STREAM.encode()), NO_CACHE, *self.grant.headers]
            await self.send({"type": "http.response.start", "status": OK, "headers": headers})
            self.is_held = self.streaming = True
        await self.send({"type": "http.response.body", "body": lines, "more_body": True})

    async def _finish_held(self, answer: Answer) -> None:
        """Send a complete answer as the end of a stream that has begun with comments."""
        body = answer.body
        if answer.status >= CLIENT_ERROR:
            body = errors.shaped(answer.status, body, self._named(answer.replica))
        await self._begin(answer.status, EVENT_STREAM, [])
        lines = b"".join(b"data: %s\n" % line for line in body.splitlines())
        end = DONE_EVENT if answer.status < CLIENT_ERROR else b""
        await self._send_last(lines + b"\n" + end)

    async def _relay_stream(
        self,
        response: Answered,
        guard: Guard,
        idle_s: float,
        replica: str,
        first: bytes,
    ) -> None:
        events = Events(
            counts=True,
            strips=self.strips_usage,
            choices=choices_of(self.fields),
            ends=self.route.ends,
        )
        content, kind, send = (
            response.content,
            response.headers.get("content-type", NO_TYPE),
            self.send,
        )
        self.streaming, is_error = True, response.status >= CLIENT_ERROR
        piece = first or await reading.next_piece(content, events)
        while piece:
            guard.heard(idle_s)
            whole = events.feed(piece)
            self.heard(0 if is_error else events_in(whole))
            self._count(events.usage)
            if whole and self.continuation is not None:
                whole = self.continuation.passed(whole)
            if self.kept is not None:
                held = self.continuation.size if self.continuation is not None else 0
                self.kept.keep(events.waiting + held)
            if whole and not self.status and not is_error and not events_in(whole):
                await self._hold(whole)
            elif whole:
                if not self.status:
                    await self._begin(response.status, kind, [NO_CACHE], replica)
                await send({"type": "http.response.body", "body": whole, "more_body": True})
            piece = await reading.next_piece(content, events)
        rest = events.flush(is_error)
        self._count(events.usage)
        if not self.status:
            if not rest:
                raise ReplicaFailed("ended its stream before the first event")
            await self._begin(response.status, kind, [NO_CACHE], replica)
        if rest and self.continuation is not None:
            rest = self.continuation.passed(rest)
        if not events.done and not is_error:
            if not events.finished and self.can_continue():
                await send({"type": "http.response.body", "body": rest, "more_body": True})
                raise ReplicaFailed("ended its stream before a finish_reason", is_alive=True)
            rest += DONE_EVENT if events.finished else _last_words(UNFINISHED)
        await send({"type": "http.response.body", "body": rest, "more_body": False})

    async def _relay_media(
        self,
        response: Answered,
        guard: Guard,
        idle_s: float,
        replica: str,
        first: bytes,
    ) -> None:
        """Relay audio and the like piece by piece. It has no usage."""
        content, kind = response.content, response.headers.get("content-type", NO_TYPE)
        piece = first or await content.readany()
        while piece:
            guard.heard(idle_s)
            self.heard(0)
            if not self.status:
                await self._begin(response.status, kind, [], replica)
                self.is_media = True
            await self.send({"type": "http.response.body", "body": piece, "more_body": True})
            piece = await content.readany()
        if not self.status:
            raise ReplicaFailed("ended its answer before the first byte")
        await self.send({"type": "http.response.body", "body": b"", "more_body": False})

    def can_continue(self) -> bool:
        """Return whether the client's stream can go on at another replica."""
        return self.continuation is not None and self.continuation.can_continue()

    def continue_elsewhere(self) -> None:
        """Make the body that continues the stream. Only after `can_continue`."""
        assert self.continuation is not None, "the stream cannot be continued"
        self.moves_on = False
        self.body = self.continuation.next_body()

    def _count(self, usage: Usage | None) -> None:
        if self.continuation is not None:
            usage = self.continuation.total(usage)
        if usage is not None:
            self.usage = usage.at_most(self.tokens_max)
            self.tokens = self.usage.tokens

    async def _begin(
        self, status: int, content_type: str, headers: list[tuple[bytes, bytes]], replica: str = ""
    ) -> None:
        self.status = status
        self.begins()
        self.first_s = time.perf_counter() - self.began_s
        if self.is_held:
            return
        headers.append((b"content-type", content_type.encode("latin-1", "replace")))
        headers.append((b"openai-processing-ms", b"%d" % (self.first_s * 1_000)))
        if named := self._named(replica):
            headers.append((b"x-muster-replica", named.encode()))
        if self.grant.headers:
            headers.extend(self.grant.headers)
        await self.send({"type": "http.response.start", "status": status, "headers": headers})

    def _named(self, replica: str) -> str:
        """Return the replica's name if the client may see it, else an empty one."""
        return "" if self.is_guest else replica

    async def refuse(self, error: ApiError) -> None:
        """Send the error: as the answer, or as an event of the stream that has begun.

        Media cannot hold an error: the server closes the connection of an answer that was not
        completed.
        """
        if not self.status and not self.is_held:
            body = errors.render(error)
            headers = [(b"content-length", b"%d" % len(body)), *error.headers]
            await self._begin(error.status, JSON, headers)
            await self.send({"type": "http.response.body", "body": body, "more_body": False})
            return
        if self.is_media:
            return
        try:
            async with asyncio.timeout(LAST_WORDS_S):
                await self.send(
                    {"type": "http.response.body", "body": _last_words(error), "more_body": False}
                )
        except TimeoutError:
            pass  # the server closes the connection of an answer that was not completed


def events_in(whole: bytes) -> int:
    """Return how many lines begin an event's data; comments and text within the data do not."""
    return whole.count(LATER_EVENT) + whole.startswith(EVENT)


def _last_words(error: ApiError) -> bytes:
    return b"data: " + errors.render(error) + b"\n\n"
