"""One client's connection: what is written within one turn of the event loop goes out at once, in one system call.

An answer's head and body come to the server as separate messages, and a system call costs more than all that is done to a short answer
here. No more than GATHERED_BYTES_MAX wait for the turn's end, so that whoever writes much is still slowed down by a client that does not
read. Held by tests/integration/test_gateway_connection.py.
"""

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

GATHERED_BYTES_MAX: Final = 64 << 10


class Connection(HttpToolsProtocol):
    """uvicorn's own, over a transport that gathers."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(Gathering(transport))  # type: ignore[arg-type]


class Gathering:
    """A transport; all but `write` and what must come after it is the real one's."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._pieces: list[bytes] = []
        self._bytes = 0

    def write(self, data: bytes) -> None:
        if not self._pieces:
            self._loop.call_soon(self._flush)
        self._pieces.append(data)
        self._bytes += len(data)
        if self._bytes > GATHERED_BYTES_MAX:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        pieces, self._pieces, self._bytes = self._pieces, [], 0
        if pieces and not self._transport.is_closing():
            self._transport.write(b"".join(pieces))

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  whatever else a transport has
        return getattr(self._transport, name)
