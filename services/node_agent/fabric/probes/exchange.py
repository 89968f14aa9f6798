"""One probe over a connected socket: round trips, then streams in both directions.

Runs in a thread of its own, so that the agent's loop does not disturb the times. Every wait ends
at one deadline for the whole probe: a peer that stalls costs that, and no more. The order of steps
is the same at both ends; the node that dialled sends first. Tests:
tests/integration/test_fabric_probes.py.
"""

import socket
import time
from collections.abc import Callable
from typing import Final

import msgspec

from services.node_agent.fabric.probes.frames import (
    DATA,
    END,
    FRAME_BYTES_MAX,
    HEADER,
    PING,
    PING_BYTES,
    SMALL_BYTES,
    BrokenProtocol,
    header,
    parsed,
    rate,
)

PINGS: Final = 8
SMALL_COUNT: Final = 4
# Parts of a pair's time for each step, in percent; each step happens in both directions.
PING_PERCENT: Final = 10
SMALL_PERCENT: Final = 10
BULK_PERCENT: Final = 30
# Unsent bytes that may wait in the socket: they are still sent when a step's time is over.
UNSENT_PARTS: Final = 64
UNSENT_MIN: Final = 16 << 10
# A frame that is sent within this time may be followed by a longer one: on a slow link, short
# frames let a step end in time.
QUICK_S: Final = 0.002
FRAME_BYTES_MIN: Final = 4 << 10
RECEIVE_BYTES: Final = 1 << 20
# Arrivals of one stream that are noted; later ones only move the last mark.
MARKS_MAX: Final = 100_000
# Linux's number; Python has a name for it only from 3.12 on.
TCP_NOTSENT_LOWAT: Final = 25

Step = Callable[[], None]


class Sizes(msgspec.Struct, frozen=True):
    """The length and the large messages of a probe."""

    pair_s: float
    bulk_bytes: int
    bulk_count: int


class Received(msgspec.Struct, frozen=True):
    """The bytes per second that this end received, and its shortest round trip."""

    bandwidth: int
    small_bandwidth: int
    rtt_ns: int
    received: int


class Exchange:
    """One end of a probe. Raises TimeoutError, OSError and BrokenProtocol."""

    def __init__(self, connection: socket.socket, sizes: Sizes, deadline_s: float) -> None:
        self.connection = connection
        self.sizes = sizes
        self.deadline_s = deadline_s
        self.buffer = memoryview(bytearray(RECEIVE_BYTES))
        self.received = 0
        self.rtt_ns = 0
        unsent = max(UNSENT_MIN, min(FRAME_BYTES_MAX, sizes.bulk_bytes // UNSENT_PARTS))
        connection.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, unsent)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def run(self, dials: bool) -> Received:
        """Carry out all steps and return what this end received."""
        bulk_bytes = self.sizes.bulk_bytes
        self._both(dials, self._ping, self._echo)
        small = self._streams(dials, SMALL_BYTES, SMALL_COUNT, SMALL_PERCENT)
        bulk = self._streams(dials, bulk_bytes, self.sizes.bulk_count, BULK_PERCENT)
        return Received(bulk, small, self.rtt_ns, self.received)

    def _both(self, dials: bool, lead: Step, follow: Step) -> None:
        for step in (lead, follow) if dials else (follow, lead):
            step()

    def _streams(self, dials: bool, size: int, count: int, percent: int) -> int:
        found: list[int] = []
        self._both(
            dials,
            lambda: self._send_stream(size, count, percent),
            lambda: found.append(self._receive_stream(size * count)),
        )
        return found[0]

    def _ping(self) -> None:
        until_s = self._until(PING_PERCENT)
        for _ in range(PINGS):
            begun_ns = time.monotonic_ns()
            self._send(header(PING, PING_BYTES) + bytes(PING_BYTES))
            self._read_frame((PING,))
            took_ns = time.monotonic_ns() - begun_ns
            self.rtt_ns = min(self.rtt_ns or took_ns, took_ns)
            if time.monotonic() > until_s:
                break
        self._send(header(END, 0))

    def _echo(self) -> None:
        for _ in range(PINGS + 1):
            kind, length = self._read_frame((PING, END))
            if kind == END:
                return
            if length != PING_BYTES:
                raise BrokenProtocol(f"it sent a ping of {length} bytes")
            self._send(header(PING, length) + bytes(length))
        raise BrokenProtocol("it sent too many pings")

    def _send_stream(self, size: int, count: int, percent: int) -> None:
        """Send messages until all are sent or the time of the step is over."""
        until_s, left = self._until(percent), size * count
        payload = memoryview(bytes(min(size, FRAME_BYTES_MAX)))
        length = FRAME_BYTES_MIN
        begun_s = time.monotonic()
        while left > 0 and begun_s < until_s:
            length = min(left, length, len(payload))
            self._send(header(DATA, length))
            self._send(payload[:length])
            left -= length
            now_s = time.monotonic()
            length = length * 2 if now_s - begun_s < QUICK_S else max(FRAME_BYTES_MIN, length // 2)
            begun_s = now_s
        self._send(header(END, 0))

    def _receive_stream(self, most: int) -> int:
        """Receive messages up to the end; return bytes per second."""
        marks: list[tuple[float, int]] = []
        total = 0
        while True:
            kind, length = parsed(self._read(HEADER.size), (DATA, END))
            if kind == END:
                return rate(marks)
            if total + length > most:
                raise BrokenProtocol(f"it sent more than {most} bytes")
            while length:
                count = self._receive(min(length, RECEIVE_BYTES))
                length, total = length - count, total + count
                marks[MARKS_MAX - 1 :] = [(time.monotonic(), total)]

    def _read_frame(self, expected: tuple[bytes, ...]) -> tuple[bytes, int]:
        kind, length = parsed(self._read(HEADER.size), expected)
        self._read(length)
        return kind, length

    def _read(self, count: int) -> bytes:
        """Return exactly this many bytes. Callers ask for small numbers only."""
        found = b""
        while len(found) < count:
            size = self._receive(min(count - len(found), RECEIVE_BYTES))
            found += self.buffer[:size]
        return found

    def _receive(self, most: int) -> int:
        self._wait()
        count = self.connection.recv_into(self.buffer, most)
        if not count:
            raise BrokenProtocol("it closed the connection")
        self.received += count
        return count

    def _send(self, data: bytes | memoryview) -> None:
        self._wait()
        self.connection.sendall(data)

    def _wait(self) -> None:
        left_s = self.deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self.connection.settimeout(left_s)

    def _until(self, percent: int) -> float:
        return time.monotonic() + self.sizes.pair_s * percent / 100
