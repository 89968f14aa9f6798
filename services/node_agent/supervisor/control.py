"""The control socket of a supervisor: JSON requests and replies, one per line, several connections.

The kernel chooses its abstract name, which the supervisor's identity contains (`records.py`), so
there is no file to make and delete. Connections of other users are closed, except root's.
Descriptors may come with a request (SCM_RIGHTS). The client is `control_client.py`.
"""

import contextlib
import json
import os
import socket
import struct
from collections.abc import Callable
from typing import Any

from services.node_agent.machine.poll_loop import READ, PollLoop

# An exec keeps a connection while it runs (`execs.EXECS_MAX`); the others are for requests.
MAX_CONNECTIONS = 48
MAX_DESCRIPTORS = 3
DESCRIPTOR_BYTES = 4
MAX_LINE_BYTES = 1024 * 1024
READ_BYTES = 65_536
CREDENTIALS = struct.Struct("3i")

Request = dict[str, Any]
Answer = Callable[[Request, "Connection"], dict[str, Any] | None]


class Control:
    """The listening socket.

    `answer` returns None for "not yet": the request is kept, and `retry` asks again. It raises
    ValueError for a bad request.
    """

    def __init__(self, loop: PollLoop, answer: Answer) -> None:
        self._loop = loop
        self._answer = answer
        self._connections: dict[int, Connection] = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._listener.bind("")
        self._listener.listen(MAX_CONNECTIONS)
        self.name: str = self._listener.getsockname()[1:].decode()
        loop.watch(self._listener.fileno(), READ, self._accept)

    def retry(self) -> None:
        for connection in list(self._connections.values()):
            connection.proceed()

    def close(self) -> None:
        self._loop.unwatch(self._listener.fileno())
        self._listener.close()
        for connection in list(self._connections.values()):
            connection.close()

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            accepted, _ = self._listener.accept()
            accepted.setblocking(False)
            if len(self._connections) >= MAX_CONNECTIONS or peer(accepted)[1] not in (
                0,
                os.geteuid(),
            ):
                accepted.close()
                return
            self._connections[accepted.fileno()] = Connection(
                self._loop, accepted, self._answer, self._connections
            )


def peer(connected: socket.socket) -> tuple[int, int]:
    """Return the process and the user at the other end, as of its connect or listen."""
    pid, user, _ = CREDENTIALS.unpack(
        connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    )
    return pid, user


class Connection:
    """One connection.

    `descriptors` arrived and were not taken; `answer` empties the list. `on_close` is called once,
    however the connection ends.
    """

    def __init__(
        self, loop: PollLoop, peer: socket.socket, answer: Answer, siblings: "dict[int, Connection]"
    ) -> None:
        self.descriptors: list[int] = []
        self.on_close: Callable[[], None] | None = None
        self._loop = loop
        self._peer = peer
        self._answer = answer
        self._siblings = siblings
        self._buffer = bytearray()
        self._pending: Request | None = None
        loop.watch(peer.fileno(), READ, self._readable)

    def close(self) -> None:
        if self._peer.fileno() >= 0:
            self._loop.unwatch(self._peer.fileno())
            self._siblings.pop(self._peer.fileno(), None)
            self._peer.close()
            for descriptor in self.descriptors:
                os.close(descriptor)
            self.descriptors = []
            if self.on_close is not None:
                self.on_close()

    def proceed(self) -> None:
        """Answer the waiting request and the lines behind it, until one must wait."""
        while self._peer.fileno() >= 0:
            if self._pending is not None and not self._settle(self._pending):
                return
            line, found, rest = self._buffer.partition(b"\n")
            if not found:
                return
            self._buffer = rest
            self._pending = self._parse(bytes(line))

    def _readable(self) -> None:
        try:
            data = self._receive()
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        self._buffer += data
        if not data or len(self._buffer) > MAX_LINE_BYTES:
            self.close()
            return
        self.proceed()

    def _receive(self) -> bytes:
        """Receive data and descriptors. The kernel closes descriptors for which there
        is no room.
        """
        room = socket.CMSG_SPACE(MAX_DESCRIPTORS * DESCRIPTOR_BYTES)
        data, ancillary, _, _ = self._peer.recvmsg(READ_BYTES, room, socket.MSG_CMSG_CLOEXEC)
        for level, kind, raw in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self.descriptors += memoryview(raw)[
                    : len(raw) // DESCRIPTOR_BYTES * DESCRIPTOR_BYTES
                ].cast("i")
        return data

    def _parse(self, line: bytes) -> Request | None:
        try:
            request = json.loads(line)
        except (ValueError, RecursionError) as error:
            self._send({"error": f"not JSON: {error}"})
            return None
        if not isinstance(request, dict):
            self._send({"error": "a request is a JSON object with an op"})
            return None
        return request

    def _settle(self, request: Request) -> bool:
        try:
            reply = self._answer(request, self)
        except ValueError as error:
            reply = {"error": str(error)}
        if reply is None:
            return False
        self._pending = None
        self._send(reply)
        return True

    def _send(self, reply: dict[str, Any]) -> None:
        """Send a reply. A client that does not read its replies is disconnected."""
        body = json.dumps(reply).encode() + b"\n"
        try:
            complete = self._peer.send(body) == len(body)
        except OSError:
            complete = False
        if not complete:
            self.close()
