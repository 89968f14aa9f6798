"""A channel into a running job: one WebSocket to the gateway, bytes both ways
(`services/api_gateway/channels/channel.py` says what travels on it).

Neither side sends more than WINDOW_BYTES that the other has not said to have taken, so a slow
reader at either end holds up the other end and nothing grows in between. Tests:
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
from libs.cli.gateway import CONNECT_S, Json, declined, headers_of, target
from libs.cli.profile import Profile
from libs.common.messages.channel_messages import CHUNK_BYTES, WINDOW_BYTES, Exec, Forward

STREAMS: Final = ("stdout", "stderr")

# What came of a stream, and that it is over.
OnBytes = Callable[[str, bytes], Awaitable[None]]
OnEnd = Callable[[str], None]


class Channel:
    """An open one."""

    def __init__(self, connection: ClientConnection, url: str) -> None:
        self._connection = connection
        self._url = url
        self._unread = 0
        self._input_over = False
        self._news = asyncio.Event()

    async def write(self, data: bytes) -> bool:
        """Waits for room. False: nobody reads it any more."""
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
        """`eof=True`, `signal=n`, or `rows=n, columns=n`."""
        await self._send(json.dumps(values))

    async def _send(self, message: str | bytes) -> None:
        """What a closed connection cannot take any more is missed by nobody: `follow` hears of the
        end.
        """
        try:
            await self._connection.send(message)
        except ConnectionClosed:
            self._input_over = True

    async def follow(self, on_bytes: OnBytes, on_end: OnEnd) -> Json:
        """Until the last word: its exit code, if it was a process. Raises Cut."""
        while True:
            try:
                message = await self._connection.recv()
            except ConnectionClosed as error:
                raise Cut(
                    f"the connection to {self._url} broke: what ran there was ended"
                ) from error
            if isinstance(message, bytes):
                stream = STREAMS[message[0]]
                await on_bytes(stream, message[1:])
                await self.tell(taken=len(message) - 1, stream=stream)
            elif (last := self._heard(json.loads(message), on_end)) is not None:
                return last

    def _heard(self, said: Json, on_end: OnEnd) -> Json | None:
        if "error" in said:
            raise Cut(str(said["error"]))
        if "exit_code" in said:
            return said
        if "end" in said:
            on_end(str(said["end"]))
        self._unread -= int(said.get("taken", 0))
        self._input_over = self._input_over or "closed" in said
        self._news.set()
        return None


@asynccontextmanager
async def opened(
    profile: Profile, path: str, wish: Exec | Forward, node: str
) -> AsyncIterator[Channel]:
    """Raises Declined, Unreachable or Cut. What is behind it ends with this."""
    headers = {
        **headers_of(profile),
        "Muster-Channel": b64encode(msgspec.json.encode(wish)).decode(),
    }
    parts = urlsplit(profile.url)
    address = f"{'wss' if parts.scheme == 'https' else 'ws'}://{parts.netloc}"
    try:
        connection = await connect(
            address + target(profile, path, {"node": node}),
            additional_headers=headers,
            user_agent_header=None,
            compression=None,
            proxy=None,
            open_timeout=CONNECT_S,
            max_size=CHUNK_BYTES + 1,
        )
    except InvalidStatus as error:
        response = error.response
        raise declined(
            profile, response.status_code, response.reason_phrase, bytes(response.body or b"")
        ) from error
    except (OSError, TimeoutError, InvalidHandshake, InvalidURI) as error:
        raise Unreachable(
            f"no gateway answers at {profile.url} (from {profile.source}): {error}"
        ) from error
    try:
        yield Channel(connection, profile.url)
    finally:
        await connection.close()
