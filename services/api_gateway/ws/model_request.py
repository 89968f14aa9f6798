"""A chat with a model over a WebSocket: the same request as POST /v1/chat/completions, with its
stream as frames.

It passes the edge as any other request, so keys, roles, limits, queues and records apply alike. The
client's `cancel` is what a hang-up is over HTTP. Tests: tests/integration/test_gateway_ws_chat.py.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import msgspec
from starlette.types import ASGIApp, Message, Scope

from services.api_gateway.openai.routes import CHAT
from services.api_gateway.ws import frames
from services.api_gateway.ws.event_lines import EventLines, Line, TooLong
from services.api_gateway.ws.frames import Name
from services.api_gateway.ws.outbox import Outbox
from services.api_gateway.ws.protocol import Request

CHUNK: Final = "chunk"
COMMENT: Final = "comment"
END: Final = "end"
STREAM: Final = b"text/event-stream"
ERROR_BYTES_MAX: Final = 64 << 10
CLIENT_ERROR: Final = 400


class ModelRequest:
    """One request on a connection.

    `app` is the gateway's edge, `scope` the connection's, and `seq` returns the gateway's commit.
    """

    def __init__(
        self,
        app: ASGIApp,
        scope: Scope,
        key: str,
        asked: Request,
        outbox: Outbox,
        seq: Callable[[], int],
    ) -> None:
        self.app = app
        self.scope = scope
        self.key = key
        self.asked = asked
        self.outbox = outbox
        self.seq = seq
        self.name = Name(asked.id)
        self.status = 0
        self._is_stream = False
        self._body: bytes | None = frames.encoded(
            {**asked.body, "model": asked.model, "stream": True}
        )
        self._cancelled = asyncio.Event()
        self._lines = EventLines()
        self._whole = bytearray()

    def cancel(self) -> None:
        """End the request, as a client that hangs up does."""
        self._cancelled.set()

    async def run(self) -> None:
        await self.app(self._request_scope(), self._receive, self._send)
        if self._cancelled.is_set():
            await self._tell(END, {"status": self.status, "cancelled": True})
        elif self.status < CLIENT_ERROR and (self._is_stream or not self._whole):
            await self._tell(END, {"status": self.status})
        else:
            await self._finish_whole()

    def _request_scope(self) -> Scope:
        assert self._body is not None, "the request is sent once"
        headers = [
            (b"host", self.scope["header"].get(b"host", b"")),
            (b"authorization", b"Bearer " + self.key.encode("latin-1", "replace")),
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(self._body)),
        ]
        kept = ("asgi", "http_version", "server", "client", "root_path", "state")
        return {
            **{name: self.scope[name] for name in kept if name in self.scope},
            "type": "http",
            "scheme": "https" if self.scope.get("scheme") == "wss" else "http",
            "method": "POST",
            "path": CHAT,
            "raw_path": CHAT.encode(),
            "query_string": b"",
            "headers": headers,
        }

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._cancelled.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self._cancelled.is_set():
            return
        if message["type"] == "http.response.start":
            self.status = message["status"]
            kinds = [value for name, value in message["headers"] if name == b"content-type"]
            self._is_stream = any(kind.startswith(STREAM) for kind in kinds)
            return
        data = message.get("body", b"")
        if not self._is_stream:
            self._whole += data[: ERROR_BYTES_MAX - len(self._whole)]
            return
        try:
            await self._pass(self._lines.feed(data))
        except OSError:
            self.cancel()  # the client has left
        except TooLong:
            await self._refuse(502, "an event of the model's stream is longer than 1 MiB")
            self.cancel()

    async def _pass(self, lines: list[Line]) -> None:
        messages = []
        for line in lines:
            if line.is_comment:
                data = frames.encoded(line.text.decode(errors="replace"))
                messages.append(self._frame(COMMENT, data))
            elif (error := _error_in(line.text)) is not None:
                messages.append(self._frame("error", frames.encoded(error)))
            else:
                messages.append(self._frame(CHUNK, line.text))
        if messages:
            await self.outbox.send(messages)

    async def _finish_whole(self) -> None:
        """Send an answer that is no stream: an error."""
        error = _error_in(bytes(self._whole))
        if error is None:
            detail = "the model's answer is no stream" if self.status < CLIENT_ERROR else "failed"
            error = {"detail": detail}
        await self._tell("error", {"status": self.status, **error})

    async def _refuse(self, status: int, detail: str) -> None:
        await self._tell("error", {"status": status, "detail": detail})

    async def _tell(self, event: str, data: dict[str, object]) -> None:
        await self.outbox.send([self._frame(event, frames.encoded(data))])

    def _frame(self, event: str, data: bytes) -> bytes:
        return self.name.frame(event, self.seq(), data)


def _error_in(data: bytes) -> dict[str, Any] | None:
    """Return the error in an answer or in an event, in the shape of this connection's errors."""
    if b'"error"' not in data[:64] and b'"detail"' not in data:
        return None
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    fault = found.get("error")
    if isinstance(fault, dict):
        return {"detail": str(fault.get("message", "")), "error": fault}
    return {"detail": str(found["detail"])} if set(found) >= {"title", "detail"} else None
