"""One request to a replica and its answer, over a connection of the HTTP client's pool.

The client's own way builds a request object, a task that writes it and a response object for each
request, which together cost more than the rest of the gateway's work on a small one. Here the head
and the body are written at once. Connecting, pooling and reading answers stay the client's, and so
do its errors. Bodies that come in pieces go the client's own way (`upstream.py`). Tests:
tests/integration/test_replica_exchange.py and test_openai_*.py.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final, Protocol

import aiohttp
from aiohttp.client_exceptions import ClientConnectionResetError
from multidict import CIMultiDictProxy

# Bytes of an answer that wait for the gateway's reader, as in the client's own way.
READ_BYTES: Final = 64 << 10
NO_TYPE: Final = "application/octet-stream"
KINDS_KEPT_MAX: Final = 256
# A longer body is not copied behind the head.
COPIED_MAX: Final = 64 << 10
# Interim answers are skipped, except for a change of the protocol.
INTERIM: Final = range(100, 200)
SWITCHING: Final = 101


class Answered(Protocol):
    """The answer of a replica, whose body is still read."""

    @property
    def status(self) -> int: ...

    @property
    def content_type(self) -> str: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    @property
    def content(self) -> aiohttp.StreamReader: ...

    def close(self) -> None: ...


class ReplicaAnswer:
    """An answer whose headers have come. Its connection returns to the pool after its last byte."""

    __slots__ = ("_connection", "content", "headers", "status")

    def __init__(
        self,
        connection: aiohttp.connector.Connection,
        status: int,
        headers: CIMultiDictProxy[str],
        content: aiohttp.StreamReader,
    ) -> None:
        self.status = status
        self.headers = headers
        self.content = content
        self._connection: aiohttp.connector.Connection | None = connection
        content.on_eof(self._complete)

    @property
    def content_type(self) -> str:
        """Return the media type in small letters, without its parameters."""
        return _kind(self.headers.get("content-type", ""))

    def close(self) -> None:
        """Close the connection, unless the whole answer has come."""
        connection, self._connection = self._connection, None
        if connection is not None:
            if self.content.exception() is None:
                self.content.set_exception(aiohttp.ClientConnectionError("Connection closed"))
            connection.close()

    def _complete(self) -> None:
        """Give the connection back; close it if the replica answered before it had the request."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        transport = connection.transport
        if transport is None or transport.get_write_buffer_size() > 0:
            connection.close()
        else:
            connection.release()


@lru_cache(KINDS_KEPT_MAX)
def _kind(given: str) -> str:
    return given.partition(";")[0].strip().lower() or NO_TYPE


class Exchange:
    """Requests to one URL. `template` is a request of the client, for its pool alone."""

    def __init__(self, session: aiohttp.ClientSession, template: aiohttp.ClientRequest) -> None:
        assert session.connector is not None, "the session is open"
        self._connector = session.connector
        self._timeout = session.timeout
        self._template = template
        self._begin = f"{template.method} {template.url.raw_path_qs} HTTP/1.1\r\nHost: " + (
            template.headers["host"] + "\r\n"
        )

    async def send(self, headers: Iterable[tuple[str, str]], body: bytes) -> ReplicaAnswer:
        """Send a request and wait for the answer's headers.

        Raises aiohttp.ClientError or OSError, and ValueError for a header with a line break.
        """
        head = self._head(headers, len(body))
        parts = (head, body) if len(body) > COPIED_MAX else (head + body,)
        try:
            connection = await self._connector.connect(self._template, [], self._timeout)
        except TimeoutError as error:
            url = self._template.url
            raise aiohttp.ConnectionTimeoutError(f"Connection timeout to host {url}") from error
        answer = None
        try:
            answer = await _exchanged(connection, parts)
            return answer
        finally:
            if answer is None:
                connection.close()

    def _head(self, headers: Iterable[tuple[str, str]], length: int) -> bytes:
        lines = [f"{name}: {value}\r\n" for name, value in headers]
        head = f"{self._begin}{''.join(lines)}Content-Length: {length}\r\n\r\n"
        breaks = len(lines) + 4
        if head.count("\n") != breaks or head.count("\r") != breaks or "\0" in head:
            raise ValueError("a header of a request to a replica has a line break or a zero byte")
        return head.encode()


async def _exchanged(
    connection: aiohttp.connector.Connection, parts: Iterable[bytes]
) -> ReplicaAnswer:
    protocol, transport = connection.protocol, connection.transport
    if protocol is None or transport is None or transport.is_closing():
        raise ClientConnectionResetError("Cannot write to closing transport")
    if protocol.should_close:
        # The replica sent more than its last answer: the rest is no answer to this request.
        raise ClientConnectionResetError("The connection has bytes of an earlier answer")
    protocol.set_response_params(read_until_eof=True, read_bufsize=READ_BYTES)
    for part in parts:
        transport.write(part)
    while True:
        try:
            head, content = await protocol.read()
        except aiohttp.http_exceptions.HttpProcessingError as error:
            raise aiohttp.ClientPayloadError(f"the answer is not HTTP: {error}") from error
        if head.code not in INTERIM or head.code == SWITCHING:
            return ReplicaAnswer(connection, head.code, head.headers, content)
