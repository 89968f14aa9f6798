"""Requests that open a connection of their own, over Python's http.client.

The command sends one request and exits, so it must import little: the pooled connections of
`asynchronous/connection.py` need a library whose import alone takes longer than a command (decision
74). Calls, errors, retries and times are shared. Tests: tests/integration/test_client_one_shot.py.
"""

import http.client
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Final
from urllib.parse import urlencode, urlsplit

from libs.client.calls import BYTES, Call
from libs.client.errors import Unavailable, error_of
from libs.client.lines import LineBuffer
from libs.client.profile import Profile
from libs.client.timing import ANSWER_S, CONNECT_S
from libs.common.errors import Refused

READ_BYTES: Final = 65_536
PROBLEM_BYTES_MAX: Final = 65_536
KEEPALIVE_IDLE_S: Final = 15
USER_AGENT: Final = "muster-cli"


def send(profile: Profile, call: Call, file: IO[bytes] | None = None) -> bytes:
    """Send a call, or a file instead of its content, and return the answer's bytes.

    Raises ApiError, and Refused for an address that is not a URL.
    """
    with _answered(profile, call, file) as response:
        try:
            return response.read()
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(
                f"{profile.url} broke off its answer to {call.what}: {error_text(error)}"
            ) from error


@contextmanager
def opened(profile: Profile, call: Call, silence_s: float | None = None) -> Iterator["Stream"]:
    """Open an answer that is read while the gateway writes it.

    `silence_s` bounds the wait for the next bytes; None waits without a limit. Raises ApiError.
    """
    with _answered(profile, call, None) as response:
        _keep_alive(response, silence_s)
        yield Stream(response, f"{profile.url}{call.path}")


class Stream:
    """An open answer: its `headers`, and its content in pieces or in lines.

    Reading raises Unavailable if the connection breaks.
    """

    def __init__(self, response: http.client.HTTPResponse, what: str) -> None:
        self._response = response
        self._what = what
        self.headers = response.headers

    def pieces(self) -> Iterator[bytes]:
        while data := self._read():
            yield data

    def lines(self) -> Iterator[bytes]:
        """Yield the lines that are not empty."""
        buffer = LineBuffer()
        for piece in self.pieces():
            yield from (line for line in buffer.feed(piece) if line.strip())
        yield from (line for line in buffer.end() if line.strip())

    def _read(self) -> bytes:
        try:
            return self._response.read1(READ_BYTES)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Unavailable(
                f"the connection to {self._what} broke: {error_text(error)}"
            ) from error


def target(profile: Profile, call: Call) -> str:
    """Return the path and the query of a request line."""
    base = urlsplit(profile.url).path.rstrip("/")
    return base + call.path + ("?" + urlencode(call.query) if call.query else "")


def headers_of(profile: Profile) -> dict[str, str]:
    """Return the headers of every request."""
    headers = {"Accept": "*/*", "User-Agent": USER_AGENT}
    return headers | ({"Authorization": f"Bearer {profile.key}"} if profile.key else {})


@contextmanager
def _answered(
    profile: Profile, call: Call, file: IO[bytes] | None
) -> Iterator[http.client.HTTPResponse]:
    connection = _connection(profile)
    try:
        _connect(profile, connection)
        assert connection.sock is not None
        connection.sock.settimeout(call.timeout_s or ANSWER_S)
        response = _exchange(profile, connection, call, file)
        if response.status >= 400:
            waits = response.headers.get("Retry-After", "")
            raise error_of(response.status, _problem(response), call.what, waits)
        yield response
    finally:
        connection.close()


def _exchange(
    profile: Profile,
    connection: http.client.HTTPConnection,
    call: Call,
    file: IO[bytes] | None,
) -> http.client.HTTPResponse:
    place = target(profile, call)
    headers = headers_of(profile) | dict(call.headers)
    if file is not None:
        size = os.fstat(file.fileno()).st_size
        headers |= {"Content-Type": BYTES, "Content-Length": str(size)}
    try:
        # The gateway may refuse a request before it has read the whole body.
        with suppress(BrokenPipeError, ConnectionResetError):
            body = file if file is not None else call.content or None
            connection.request(call.method, place, body, headers)
        return connection.getresponse()
    except TimeoutError as error:
        raise Unavailable(
            f"{profile.url} did not answer {call.method} {place} in time; it may still carry out "
            "the request"
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(
            f"{profile.url} broke the connection at {call.method} {place}: {error_text(error)}"
        ) from error


def _connection(profile: Profile) -> http.client.HTTPConnection:
    """Return a connection that is not open yet. Raises Refused."""
    try:
        parts = urlsplit(profile.url)
        port = parts.port
    except ValueError as error:
        raise Refused(
            f"the gateway's address {profile.url!r} (from {profile.source}) is not a URL: {error}"
        ) from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Refused(
            f"the gateway's address {profile.url!r} (from {profile.source}) must look like "
            "http://host:8080"
        )
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.hostname, port, timeout=CONNECT_S)


def _connect(profile: Profile, connection: http.client.HTTPConnection) -> None:
    try:
        connection.connect()
    except OSError as error:
        raise Unavailable(
            f"no gateway answers at {profile.url} (from {profile.source}): {error_text(error)}",
            sent=False,
        ) from error


def _problem(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read(PROBLEM_BYTES_MAX)
    except (OSError, http.client.HTTPException):
        return b""


def _keep_alive(response: http.client.HTTPResponse, silence_s: float | None) -> None:
    """Turn on TCP keepalive: a stream may be silent for hours, and its peer may disappear."""
    raw = getattr(getattr(response.fp, "raw", None), "_sock", None)
    if raw is None:
        return
    raw.settimeout(silence_s)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)


def error_text(error: Exception) -> str:
    """Return the cause of a broken connection in words."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
