"""Exec and Forward: a stream of messages each way, over the WebSocket that REST has for them.

The app sees a WebSocket (`http/channels.py` describes its messages). What gRPC's own flow control
lets through is acknowledged here in both directions, so buffers stay within WINDOW_BYTES.
Tests: tests/integration/test_rpc_channels.py.
"""

import asyncio
from base64 import b64encode
from typing import Any, Final

import msgspec
from starlette.types import ASGIApp, Message

from libs.common.errors import Unavailable
from libs.common.messages.channel_messages import CHUNK_BYTES, WINDOW_BYTES
from services.api_gateway.channels.relay import STREAMS
from services.api_gateway.problems import Problem
from services.api_gateway.rpc import status
from services.api_gateway.rpc.call import Call, Ended
from services.api_gateway.rpc.calls import Calls
from services.api_gateway.rpc.conversion import Fields
from services.api_gateway.rpc.exchange import Pipe, headers_of
from services.api_gateway.rpc.methods import Kind
from services.api_gateway.rpc.requests import Asked, asked

# Messages that wait in each direction. Their bytes are bounded by the window.
MESSAGES_MAX: Final = 64
# The app ended the channel because its protocol was broken.
BROKEN: Final = 1008
EXEC_FIELDS: Final = ("command", "stdin", "tty", "rows", "columns", "term")

_encode: Final = msgspec.json.Encoder().encode


class ChannelCall:
    """One channel of a client."""

    def __init__(self, calls: Calls, call: Call) -> None:
        self.calls = calls
        self.call = call
        self.to_app: Pipe[Message] = Pipe(MESSAGES_MAX)
        self.from_app: Pipe[Message] = Pipe(MESSAGES_MAX)
        self.refusal: tuple[int, dict[str, str]] = (0, {})
        self.refused_body = b""
        self.untaken = 0
        self.taken = asyncio.Event()
        self.is_connected = False
        self.is_closed = False

    @property
    def is_exec(self) -> bool:
        return self.call.method.kind is Kind.EXEC

    async def run(self) -> None:
        """Relay until the command or the connection has ended."""
        start = (await self.call.fields()).get("start")
        if not isinstance(start, dict):
            raise Problem(400, "start: missing in the first message: name the job to connect to")
        self.call.held.take(2 * WINDOW_BYTES)
        exchange = self.calls.begin(self.call, self._scope(start), app=self._app)
        feeding = asyncio.get_running_loop().create_task(self._feed(start))
        feeding.add_done_callback(lambda task: self.from_app.close() if _fault(task) else None)
        try:
            while (message := await self.from_app.get()) is not None:
                await self._relay(message)
            if self.refusal[0]:
                code, headers = self.refusal
                raise Ended(
                    status.refusal(code, self.refused_body, headers.get(status.REQUEST_ID, ""))
                )
            if not self.is_closed:
                raise Unavailable("the channel broke off: start the command again")
        finally:
            feeding.cancel()
            exchange.leave()
            self.to_app.close()
            self.from_app.close()
            if fault := _fault(feeding):
                raise fault

    def _scope(self, start: Fields) -> dict[str, Any]:
        """Return the scope of the WebSocket, with the request in its header."""
        if self.is_exec:
            wish = {"type": "exec"} | {name: start[name] for name in EXEC_FIELDS if name in start}
            wish.setdefault("command", [])
        else:
            wish = {"type": "forward", "port": start.get("port", 0)}
        place = {"ref": start.get("ref", "")}
        if start.get("node"):
            place["node"] = start["node"]
        request: Asked = asked(self.call.method, place)
        header = (b"muster-channel", b64encode(_encode(wish)))
        return dict(self.call.scope(request._replace(headers=[header]), "websocket"))

    async def _app(self, scope: Any, _receive: Any, _send: Any) -> None:  # noqa: ANN401  of ASGI
        """Run the gateway's app with messages of a WebSocket instead of those of HTTP."""
        app: ASGIApp = self.calls.app
        leaving = asyncio.get_running_loop().create_task(self._close_after(_receive))
        try:
            await app(scope, self._receive, self._send)
        finally:
            leaving.cancel()
            self.from_app.close()

    async def _close_after(self, receive: Any) -> None:  # noqa: ANN401  of ASGI
        """Close the channel when the call has ended."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self.to_app.close()
        self.from_app.close()

    async def _receive(self) -> Message:
        if not self.is_connected:
            self.is_connected = True
            return {"type": "websocket.connect"}
        return await self.to_app.get() or {"type": "websocket.disconnect", "code": 1005}

    async def _send(self, message: Message) -> None:
        kind = message["type"]
        if kind == "websocket.http.response.start":
            self.refusal = (message["status"], headers_of(message))
        elif kind == "websocket.http.response.body":
            self.refused_body += message.get("body", b"")
        else:
            await self.from_app.put(message)

    # From the app to the client.

    async def _relay(self, message: Message) -> None:
        if message["type"] == "websocket.accept":
            await self.call.context.send_initial_metadata(())
        elif message["type"] == "websocket.close":
            self.is_closed = True
            if message.get("code") == BROKEN:
                text = "the channel was ended because of a message that it cannot read"
                raise Ended(status.of_problem(Problem(400, text)))
        elif message.get("bytes"):
            await self._relay_bytes(message["bytes"])
        else:
            await self._relay_text(msgspec.json.decode(message["text"]))

    async def _relay_bytes(self, data: bytes) -> None:
        """Send output to the client, and acknowledge it when it is on its way."""
        stream, piece = STREAMS[data[0]], data[1:]
        await self.call.write({stream: piece} if self.is_exec else {"data": piece})
        taken = _encode({"taken": len(piece), "stream": stream}).decode()
        await self.to_app.put({"type": "websocket.receive", "text": taken})

    async def _relay_text(self, said: Fields) -> None:
        if "taken" in said:
            self.untaken -= said["taken"]
            self.taken.set()
        elif "error" in said:
            await self.call.write({"error": said["error"]})
        elif "exit_code" in said and self.is_exec:
            await self.call.write({"exit_code": said["exit_code"], "detail": said["detail"]})
        elif "end" in said and not self.is_exec:
            await self.call.write({"eof": True})

    # From the client to the app.

    async def _feed(self, start: Fields) -> None:
        """Send the client's messages. The end of its stream is the end of the input."""
        while (data := await self.call.read()) is not None:
            await self._feed_one(self.call.decoded(data))
        if start.get("stdin") or not self.is_exec:
            await self._tell({"eof": True})

    async def _feed_one(self, fields: Fields) -> None:
        for begin in range(0, len(data := fields.pop("data", b"")), CHUNK_BYTES):
            piece = data[begin : begin + CHUNK_BYTES]
            while self.untaken + len(piece) > WINDOW_BYTES:
                self.taken.clear()
                await self.taken.wait()
            self.untaken += len(piece)
            await self.to_app.put({"type": "websocket.receive", "bytes": piece})
        if fields.get("eof"):
            await self._tell({"eof": True})
        if "signal" in fields:
            await self._tell({"signal": fields["signal"]})
        if size := fields.get("size"):
            await self._tell({"rows": size.get("rows", 0), "columns": size.get("columns", 0)})

    async def _tell(self, said: Fields) -> None:
        await self.to_app.put({"type": "websocket.receive", "text": _encode(said).decode()})


def _fault(feeding: asyncio.Task[None]) -> BaseException | None:
    """Return the fault of the client's messages, if they had one."""
    return feeding.exception() if feeding.done() and not feeding.cancelled() else None
