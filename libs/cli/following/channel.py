"""A channel into a running job: one WebSocket to the gateway, with bytes in both directions.

`services/api_gateway/channels/channel.py` defines the protocol. Each side sends at most
WINDOW_BYTES that the other has not acknowledged, so a slow reader blocks the writer and no buffer
grows. Tests:
tests/integration/test_cli_exec.py, test_cli_port_forward.py.
"""

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import urlsplit

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI

from libs.cli.faults import Cut, Unreachable
from libs.cli.gateway import Json, declined
from libs.client.calls import Call, pairs
from libs.client.one_shot import headers_of, target
from libs.client.profile import Profile
from libs.client.timing import CONNECT_S
from libs.common.messages.channel_messages import CHUNK_BYTES, WINDOW_BYTES, Exec, Forward

STREAMS: Final = ("stdout", "stderr")

# Callbacks for bytes of a stream, and for its end.
OnBytes = Callable[[str, bytes], Awaitable[None]]
OnEnd = Callable[[str], None]


class Channel:
    """An open channel."""

    def __init__(self, connection: ClientConnection, url: str) -> None:
        self._connection = connection
        self._url = url
        self._unread = 0
        self._input_over = False
        self._news = asyncio.Event()

    async def write(self, data: bytes) -> bool:
        """Send `data` when there is room. Return False if the other side reads no more."""
        for begin in range(0, len(data), CHUNK_BYTES):
            piece = data[begin : begin + CHUNK_BYTES]
            while self._unread + len(piece) > WINDOW_BYTES and not self._input_over:
                self._news.clear()
                await self._news.wait()
            if self._input_over:
                return False
            self._unread += len(piece)
            await self._send(piece)
        return not self._input_over

    async def tell(self, **values: object) -> None:
        """Send a control message: `eof=True`, `signal=n`, or `rows=n, columns=n`."""
        await self._send(json.dumps(values))

    async def _send(self, message: str | bytes) -> None:
        """Send a message; if the connection is closed, `follow` reports its end."""
        try:
            await self._connection.send(message)
        except ConnectionClosed:
            self._input_over = True

    async def follow(self, on_bytes: OnBytes, on_end: OnEnd) -> Json:
        """Relay messages until the last one, and return it. Raises Cut if the connection breaks."""
        while True:
            try:
                message = await self._connection.recv()
            except ConnectionClosed as error:
                raise Cut(
                    f"the connection to {self._url} broke: the command or connection "
                    "there was ended"
                ) from error
            if isinstance(message, bytes):
                stream = STREAMS[message[0]]
                await on_bytes(stream, message[1:])
                await self.tell(taken=len(message) - 1, stream=stream)
            elif (last := self._control(json.loads(message), on_end)) is not None:
                return last

    def _control(self, message: Json, on_end: OnEnd) -> Json | None:
        if "error" in message:
            raise Cut(str(message["error"]))
        if "exit_code" in message:
            return message
        if "end" in message:
            on_end(str(message["end"]))
        self._unread -= int(message.get("taken", 0))
        self._input_over = self._input_over or "closed" in message
        self._news.set()
        return None


@asynccontextmanager
async def opened(
    profile: Profile, path: str, request: Exec | Forward, node: str
) -> AsyncIterator[Channel]:
    """Open a channel; closing it ends the process or connection behind it.

    Raises Declined, Unreachable or Cut.
    """
    headers = {
        **headers_of(profile),
        "Muster-Channel": b64encode(msgspec.json.encode(request)).decode(),
    }
    parts = urlsplit(profile.url)
    address = f"{'wss' if parts.scheme == 'https' else 'ws'}://{parts.netloc}"
    try:
        connection = await connect(
            address + target(profile, Call("GET", path, pairs({"node": node}))),
            additional_headers=headers,
            user_agent_header=None,
            compression=None,
            proxy=None,
            open_timeout=CONNECT_S,
            max_size=CHUNK_BYTES + 1,
        )
    except InvalidStatus as error:
        response = error.response
        raise declined(profile, response.status_code, bytes(response.body or b"")) from error
    except (OSError, TimeoutError, InvalidHandshake, InvalidURI) as error:
        raise Unreachable(
            f"no gateway answers at {profile.url} (from {profile.source}): {error}"
        ) from error
    try:
        yield Channel(connection, profile.url)
    finally:
        await connection.close()
