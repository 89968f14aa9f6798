"""Move a connection away from a NATS server: at once, and to another one.

A frozen server acknowledges nothing, but its kernel accepts new connections. nats-py alone would
wait up to 30 s for the server's end of a TLS session, and then might choose the same server again.
Tests: tests/attack/test_frozen_server.py, tests/unit/test_reconnecting.py.
"""

import asyncio
import random
import ssl
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import ParseResult

from nats.aio.client import Server
from nats.aio.transport import TcpTransport

# Time for a server to take the last bytes and to end the TLS session.
CLOSE_S: Final = 0.25
# Pause before each connection attempt.
PAUSE_S: Final = 0.1


class ServerChoice:
    """Chooses the server of the next attempt: the one that was tried longest ago.

    The server that the client has just left is therefore the last one. Servers that were never
    tried come first, in random order, so that the clients of one server spread over the others.
    """

    def __init__(self) -> None:
        self.tried: list[str] = []

    def __call__(
        self, pool: Sequence[Server], info: dict[str, object]
    ) -> tuple[Server | None, float]:
        """Return the server, and the seconds to wait before the attempt (nats-py calls this)."""
        chosen = min(random.sample(pool, len(pool)), key=self._rank)  # nosec B311
        self.note(chosen.uri.netloc)
        return chosen, PAUSE_S

    def note(self, netloc: str) -> None:
        """Note that a server (host:port) is tried now."""
        if netloc in self.tried:
            self.tried.remove(netloc)
        self.tried.append(netloc)

    def _rank(self, server: Server) -> int:
        netloc = server.uri.netloc
        return self.tried.index(netloc) if netloc in self.tried else -1


class BoundedCloseTransport:
    """A TCP transport of nats-py that waits at most CLOSE_S for the other end when it closes."""

    def __init__(self) -> None:
        self.inner: Any = TcpTransport()  # type: ignore[no-untyped-call]

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        await self.inner.connect(uri, buffer_size, connect_timeout)

    async def connect_tls(
        self,
        uri: str | ParseResult,
        ssl_context: ssl.SSLContext,
        buffer_size: int,
        connect_timeout: int,
    ) -> None:
        await self.inner.connect_tls(uri, ssl_context, buffer_size, connect_timeout)

    def write(self, payload: bytes) -> None:
        self.inner.write(payload)

    def writelines(self, payload: list[bytes]) -> None:
        self.inner.writelines(payload)

    async def read(self, buffer_size: int) -> bytes:
        found: bytes = await self.inner.read(buffer_size)
        return found

    async def readline(self) -> bytes:
        found: bytes = await self.inner.readline()
        return found

    async def drain(self) -> None:
        await self.inner.drain()

    async def wait_closed(self) -> None:
        """Wait for the end of the connection; after CLOSE_S end it without the other end."""
        writer: asyncio.StreamWriter | None = self.inner._io_writer
        try:
            async with asyncio.timeout(CLOSE_S):
                await self.inner.wait_closed()
        except TimeoutError:
            if writer is not None:
                writer.transport.abort()

    def close(self) -> None:
        self.inner.close()

    def at_eof(self) -> bool:
        return bool(self.inner.at_eof())

    def __bool__(self) -> bool:
        """Return True: nats-py replaces a transport that is false by its own."""
        return True
