"""A link's connection over TCP: frames by sendmsg and recv_into, without a copy in Python.

Payloads are received where they belong (a receive buffer, a region, the buffer of a read) and
summed piece by piece while they are in the cache. Tests: tests/contract/test_transport.py.
"""

import secrets
import socket
from collections.abc import Callable
from typing import Any, Final

from libs.job.transport import checksums
from libs.job.transport.errors import Cause, WireFault
from libs.job.transport.frames import HEADER_BYTES, BadFrame, Header, decode, encode
from libs.job.transport.memory import Slot
from libs.job.transport.progress import wait_on
from libs.job.transport.session import Entry, Session
from libs.job.transport.sink import Sink

# Frames taken in one go, so that a fast peer does not keep the lock.
FRAMES_AT_ONCE: Final = 32
KEY_BITS: Final = 64


class TcpWire:
    """One TCP connection. `stream` is connected and has finished the handshake."""

    def __init__(self, stream: socket.socket, session: Session, sink: Sink, checksum: str) -> None:
        stream.setblocking(False)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = stream
        self._session = session
        self._sink = sink
        self._sum = checksums.maker(checksum)
        self._out: list[memoryview] = []
        self._entry: Entry | None = None
        self._head = memoryview(bytearray(HEADER_BYTES))
        self._head_found = 0
        self._header: Header | None = None
        self._place = memoryview(b"")
        self._found = 0
        self._taken = 0
        self._total: Any = None

    def pump(self) -> bool:
        """Take what has arrived; return whether there was any."""
        before = self._taken
        try:
            for _ in range(FRAMES_AT_ONCE):
                if self._header is None:
                    self._take_header()
                self._take_payload()
                self._finish()
        except BlockingIOError:
            pass
        except OSError as error:
            raise WireFault(Cause.BROKEN, f"the connection failed: {error.strerror}") from error
        return self._taken != before

    def transmit(self) -> bool:
        """Send what the session has; False if the kernel takes no more for now."""
        try:
            while self._out or self._load():
                sent = self._stream.sendmsg(self._out)
                self._advance(sent)
        except BlockingIOError:
            return False
        except OSError as error:
            raise WireFault(Cause.BROKEN, f"the connection failed: {error.strerror}") from error
        return True

    def wait(self, wake: int, until_s: float) -> None:
        """Wait for the connection."""
        wait_on(self._stream.fileno(), bool(self._out), wake, until_s)

    def close(self) -> None:
        """End the connection."""
        self._stream.close()

    def _load(self) -> bool:
        """Put the next frame into `_out`; False if there is none."""
        entry = self._session.next_entry()
        head = self._sink.header(entry) if entry is not None else self._sink.control()
        if head is None:
            return False
        self._out = [memoryview(encode(head))]
        self._entry = entry
        if entry is not None and head.length:
            self._out.append(entry.payload)
        return True

    def _advance(self, sent: int) -> None:
        while self._out and sent >= len(self._out[0]):
            sent -= len(self._out.pop(0))
        if self._out:
            self._out[0] = self._out[0][sent:]
        elif self._entry is not None:
            self._session.transmitted()
            self._entry = None

    def _take_header(self) -> None:
        while self._head_found < HEADER_BYTES:
            self._head_found += self._receive(self._head[self._head_found :])
        self._head_found = 0
        try:
            header = decode(self._head)
        except BadFrame as error:
            raise WireFault(Cause.CORRUPT, f"the peer sent {error}") from None
        self._place = self._sink.place(header)
        self._header = header
        self._found = 0
        self._total = self._sum() if header.length else None

    def _take_payload(self) -> None:
        while self._found < len(self._place):
            end = min(len(self._place), self._found + checksums.PIECE_BYTES)
            count = self._receive(self._place[self._found : end])
            self._total.update(self._place[self._found : self._found + count])
            self._found += count

    def _finish(self) -> None:
        header = self._header
        assert header is not None
        if header.length and int(self._total.intdigest()) & 0xFFFFFFFF != header.checksum:
            raise WireFault(
                Cause.CORRUPT,
                f"frame {header.number} ({header.kind.name}, {header.length} bytes) arrived with a "
                "wrong checksum",
            )
        self._header = None
        self._sink.arrived(header, self._place)

    def _receive(self, into: memoryview) -> int:
        count = self._stream.recv_into(into)
        if count == 0:
            inside = self._header is not None or self._head_found
            where = f" inside a frame, after {self._found} bytes of its payload" if inside else ""
            raise WireFault(Cause.BROKEN, f"the peer closed the connection{where}")
        self._taken += count
        return count


class TcpCarrier:
    """The carrier of a link over TCP, with all its connections."""

    name: Final = "tcp"

    def slots(self, count: int, size: int) -> list[Slot]:
        """Return receive buffers."""
        return [Slot(size, 0) for _ in range(count)]

    def register(
        self, view: memoryview, readable: bool, writable: bool
    ) -> tuple[int, int, Callable[[], None]]:
        """Return key and address of a region, and what takes it back. The link serves it."""
        return secrets.randbits(KEY_BITS), 0, lambda: None

    def offer(self, peer: dict[str, Any] | None) -> dict[str, Any]:
        """Return what the peer must know of the next connection."""
        return {}

    def wire(
        self,
        stream: socket.socket,
        peer: dict[str, Any],
        session: Session,
        sink: Sink,
        checksum: str,
    ) -> TcpWire:
        """Return the connection after its handshake."""
        return TcpWire(stream, session, sink, checksum)

    def close(self) -> None:
        """Free what the carrier holds."""
