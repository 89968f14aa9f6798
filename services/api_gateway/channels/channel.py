"""One channel between a client's WebSocket and a process on a node. It relays bytes both ways by
offset, as `relay.py` relays a job's own output and input.

Each direction sends the node one message at a time, and holds at most WINDOW_BYTES that the other
end has not acknowledged. So neither a slow client nor a process that does not read can make a
buffer grow here, and a signal never waits behind unread input.

Binary messages are bytes: input from the client, and output from the gateway, which begins with the
number of its stream. Text messages are JSON objects. The client sends {"taken", "stream"}, {"eof"},
{"signal"} and {"rows", "columns"}. The gateway sends {"taken"} and {"closed"} for the input,
{"end"} for a stream, and last {"exit_code", "detail"} or {"error"}.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
from starlette.types import Message, Receive, Scope, Send

from libs.common import subjects
from libs.common.errors import Refused, Unavailable
from libs.common.facts import UNDECODABLE
from libs.common.messages import OutputAsk, StdinPut, StdinTaken
from libs.common.messages.channel_messages import (
    CHUNK_BYTES,
    KEEPALIVE_S,
    WINDOW_BYTES,
    ChannelAnswer,
    ChannelAsk,
    ChannelClose,
    ChannelOpen,
    ChannelSignal,
    ChannelSize,
    Exec,
)
from libs.common.model import NodeId
from services.api_gateway.access.key_watch import until_refused
from services.api_gateway.channels.relay import STREAMS, WAIT_MS, ask_output, put_input
from services.api_gateway.gateway import Gateway

# The gateway repeats a request to a silent node. After AWAY_S the channel ends.
AWAY_S: Final = 20.0
RETRY_S: Final = 0.2
SIGNALS: Final = range(1, 65)
# Rows and columns of a terminal.
SIDES: Final = range(1, 10_000)

T = TypeVar("T")

_encode = msgspec.msgpack.Encoder().encode
_answer = msgspec.msgpack.Decoder(ChannelAnswer)


class Misbehaved(Exception):
    """The client broke the channel's protocol."""


async def ask_channel(gateway: Gateway, node_id: NodeId, ask: ChannelAsk) -> None:
    """Ask the node. Raises Refused if it refuses, Unavailable if it does not answer."""
    answer = await gateway.bus.request(
        subjects.ask_node(node_id, "channel"), _encode(ask), gateway.settings.stdin_ms / 1_000
    )
    try:
        decoded = _answer.decode(answer)
    except UNDECODABLE as error:
        raise Unavailable(
            f"node {node_id} sent an answer that is not a ChannelAnswer ({error}): check whether "
            "its agent is older"
        ) from error
    if decoded.error:
        raise Refused(decoded.error)


class Channel:
    """The relay of one channel.

    `run` returns when both ends know of the end. By then the node has closed its end, or was told
    to close it.
    """

    def __init__(
        self,
        gateway: Gateway,
        scope: Scope,
        node_id: NodeId,
        opened: ChannelOpen,
        receive: Receive,
        send: Send,
    ) -> None:
        self.gateway = gateway
        self.scope = scope
        self.node_id = node_id
        self.opened = opened
        self.receive = receive
        self.inner = send
        self.streams = (
            STREAMS if isinstance(opened.wish, Exec) and not opened.wish.tty else STREAMS[:1]
        )
        self.unread = dict.fromkeys(STREAMS, 0)
        self.acknowledged = asyncio.Event()
        self.input = bytearray()
        self.eof = False
        self.news = asyncio.Event()
        self.input_over = asyncio.Event()
        self.last: dict[str, object] = {}

    async def run(self) -> None:
        listening, working = asyncio.create_task(self._receive()), asyncio.create_task(self._work())
        try:
            await asyncio.wait((listening, working), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
                with suppress(OSError):  # the client left in this moment
                    await self._send_to_client(**self.last)
                    await self.inner({"type": "websocket.close", "code": 1000})
        finally:
            for task in (listening, working):
                task.cancel()
            await asyncio.gather(listening, working, return_exceptions=True)
            with suppress(Refused, Unavailable):
                await ask_channel(self.gateway, self.node_id, ChannelClose(self.opened.channel))

    async def _work(self) -> None:
        """Relay until the process, or both directions of a connection, have ended."""
        try:
            async with asyncio.TaskGroup() as tasks:
                feeding = tasks.create_task(self._feed())
                watching = tasks.create_task(self._watch_key())
                pumps = [tasks.create_task(self._pump(stream)) for stream in self.streams]
                await asyncio.wait(pumps)
                if not isinstance(self.opened.wish, Exec):
                    await self.input_over.wait()
                feeding.cancel()
                watching.cancel()
        except* (Refused, Unavailable, OSError) as group:
            self.last = {"error": str(group.exceptions[0])}

    async def _watch_key(self) -> None:
        """Raise Refused when the client's key is not accepted any more."""
        raise Refused(await until_refused(self.gateway, self.scope["key"], self.scope["principal"]))

    # From the client.

    async def _receive(self) -> None:
        """Receive messages until the client disconnects."""
        while (message := await self.receive())["type"] == "websocket.receive":
            try:
                await self._on_frame(message)
            except (Misbehaved, msgspec.DecodeError):
                await self.inner({"type": "websocket.close", "code": 1008})
                return

    async def _on_frame(self, message: Message) -> None:
        data = message.get("bytes")
        if data is None:
            await self._on_text(msgspec.json.decode(message["text"], type=dict[str, Any]))
            return
        self.input += data
        if len(self.input) > WINDOW_BYTES:
            raise Misbehaved
        self.news.set()

    async def _on_text(self, message: dict[str, Any]) -> None:
        match message:
            case {"taken": int(count), "stream": str(stream)} if count in range(
                self.unread.get(stream, 0) + 1
            ):
                self.unread[stream] -= count
                self.acknowledged.set()
            case {"eof": True}:
                self.eof = True
                self.news.set()
            case {"signal": int(number)} if number in SIGNALS:
                await self._send_to_node(ChannelSignal(self.opened.channel, number))
            case {"rows": int(rows), "columns": int(columns)} if rows in SIDES and columns in SIDES:
                await self._send_to_node(ChannelSize(self.opened.channel, rows, columns))
            case _:
                raise Misbehaved

    async def _send_to_node(self, ask: ChannelAsk) -> None:
        """Send a message to the node. The loops that wait for bytes notice a lost node."""
        with suppress(Refused, Unavailable):
            await ask_channel(self.gateway, self.node_id, ask)

    # To the node and back.

    async def _feed(self) -> None:
        """Send the client's input to the node, as far as the node takes it.

        Without input, send keep-alive messages, so that the node does not close the channel.
        """
        offset = 0
        while True:
            data, over = bytes(self.input[:CHUNK_BYTES]), self.input_over.is_set()
            eof = self.eof and not over and len(data) == len(self.input)
            if not data and not eof and await self._wait_for_input():
                continue
            taken = await self._repeat(partial(self._offer_input, offset, data, eof))
            if taken.error:
                raise Refused(taken.error)
            count = len(data) if taken.closed else taken.next_offset - offset
            offset = taken.next_offset
            del self.input[:count]
            if count:
                await self._send_to_client(taken=count)
            if taken.closed and not over:
                self.input_over.set()
                await self._send_to_client(closed=True)

    async def _wait_for_input(self) -> bool:
        """Wait for input of the client. Return False after KEEPALIVE_S without any."""
        self.news.clear()
        try:
            async with asyncio.timeout(KEEPALIVE_S):
                return await self.news.wait()
        except TimeoutError:
            return False

    async def _offer_input(self, offset: int, data: bytes, eof: bool) -> StdinTaken:
        put = StdinPut(
            job_id=self.opened.job_id,
            attempt=self.opened.attempt,
            offset=offset,
            data=data,
            eof=eof,
            channel=self.opened.channel,
        )
        return await put_input(self.gateway, self.node_id, put)

    async def _pump(self, stream: str) -> None:
        offset, number = 0, bytes((STREAMS.index(stream),))
        while True:
            room = await self._room(stream)
            ask = OutputAsk(
                job_id=self.opened.job_id,
                attempt=self.opened.attempt,
                stream=stream,
                offset=offset,
                max_bytes=room,
                wait_ms=WAIT_MS,
                channel=self.opened.channel,
            )
            chunk = await self._repeat(partial(ask_output, self.gateway, self.node_id, ask))
            if chunk.error:
                raise Refused(chunk.error)
            if chunk.data:
                offset += len(chunk.data)
                self.unread[stream] += len(chunk.data)
                await self.inner({"type": "websocket.send", "bytes": number + chunk.data})
            if chunk.end:
                self.last = {"exit_code": chunk.exit_code, "detail": chunk.detail}
                await self._send_to_client(end=stream)
                return

    async def _room(self, stream: str) -> int:
        """Wait until bytes may be requested, and return how many."""
        while self.unread[stream] >= WINDOW_BYTES:
            self.acknowledged.clear()
            await self.acknowledged.wait()
        return min(CHUNK_BYTES, WINDOW_BYTES - self.unread[stream])

    async def _repeat(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat a request. Raises Unavailable when the node has not answered for AWAY_S."""
        since_ns = self.gateway.clock.boot_ns()
        while True:
            try:
                return await call()
            except Unavailable:
                if self.gateway.clock.boot_ns() - since_ns > AWAY_S * 1e9:
                    raise
            await asyncio.sleep(RETRY_S)

    async def _send_to_client(self, **values: object) -> None:
        await self.inner({"type": "websocket.send", "text": msgspec.json.encode(values).decode()})
