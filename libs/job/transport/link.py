"""One reliable link to a peer: messages, and reads and writes of the peer's regions.

`Link` is what users call. Its connection is a `Wire` (`tcp.py`, `rdma.py`); `traffic.py` knows the
frames, `session.py` what must be repeated, and `progress.py` decides who waits. docs/transport.md
is for users. Tests: tests/contract/test_transport.py.
"""

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from libs.job.transport.errors import Cause, LinkError, WireFault
from libs.job.transport.frames import Kind
from libs.job.transport.memory import Data, Received, Region, RemoteRegion, Slot, flat
from libs.job.transport.progress import Connected, Progress, Wire
from libs.job.transport.session import Entry
from libs.job.transport.traffic import PIECE_BYTES, Agreed, Carrier, Options, Read, Traffic

WITHIN_S: Final = 30.0
# Pieces of one read that are asked for at once.
PIECES_AT_ONCE: Final = 16
# How long `close` waits for the peer to acknowledge what was sent.
LINGER_S: Final = 1.0


class LinkStats(NamedTuple):
    """Counts since the link began. `repeated` and `doubled`: frames after reconnections."""

    transport: str
    peer: str
    connected: bool
    reconnections: int
    sent_bytes: int
    received_bytes: int
    compressed: int
    repeated: int
    doubled: int
    unacknowledged: int


class Link:
    """A reliable link to one peer; safe for threads. Every wait has a deadline in seconds."""

    def __init__(
        self,
        agreed: Agreed,
        carrier: Carrier,
        options: Options,
        dial: Callable[["Link", float], Connected] | None,
        forget: Callable[[], None] = lambda: None,
    ) -> None:
        self.peer = agreed.peer
        self.transport = carrier.name
        self.no_rdma = ""
        self.agreed = agreed
        self.carrier = carrier
        self.traffic = Traffic(agreed, options, carrier)
        self.progress = Progress(
            self.peer,
            self.traffic.session,
            dial=(lambda by_s: dial(self, by_s)) if dial else None,
            done=self.traffic.done,
            restarted=self.traffic.restarted,
            give_up_s=options.give_up_s,
        )
        self.traffic.moved = self.progress.moved
        self.traffic.ended = self._ended
        self._lock = self.progress.lock
        self._forget = forget
        self._closed = False

    # Messages.

    def send(self, data: Data, within_s: float = WITHIN_S) -> int:
        """Send one message from any buffer, without a copy; return its number.

        The buffer must not change until `flush` returns. Waits while the peer has no free buffer.
        Raises LinkError.
        """
        by_s = time.monotonic() + within_s
        view = flat(data)
        most = self.agreed.message_bytes_max
        if len(view) > most:
            detail = f"a message of {len(view)} bytes: the peer takes at most {most}"
            raise LinkError(Cause.TOO_LARGE, self.peer, detail)
        entry = self.traffic.packed(view)
        with self._lock:
            return self._post(entry, by_s, f"the peer had no room for a message in {within_s:g} s")

    def recv(self, within_s: float = WITHIN_S) -> Received:
        """Return the next message, in a registered buffer of this link. Raises LinkError."""
        by_s = time.monotonic() + within_s
        messages = self.traffic.messages
        with self._lock:
            self.progress.until(
                lambda: messages, by_s, f"no whole message arrived in {within_s:g} s"
            )
            slot, view = messages.popleft()
        return Received(view, lambda: self._release(slot))

    def flush(self, within_s: float = WITHIN_S) -> None:
        """Wait until the peer has everything that was sent, messages and writes. Raises LinkError.

        Buffers that were sent may change after it.
        """
        with self._lock:
            self._flush(time.monotonic() + within_s, within_s)

    # Regions.

    def register(
        self, view: memoryview, *, readable: bool = False, writable: bool = False
    ) -> Region:
        """Let this link's peer, and no other, read or write memory; send it `region.remote`."""
        view = flat(view)
        with self._lock:
            try:
                key, address, close = self.carrier.register(view, readable, writable)
            except WireFault as fault:
                raise LinkError(fault.cause, self.peer, fault.detail) from fault
            remote = RemoteRegion(key, address, len(view), readable, writable)
            region = Region(view, remote, lambda: self._take_back(key, close))
            self.traffic.regions[key] = region
            return region

    def write(
        self, remote: RemoteRegion, data: Data, offset: int = 0, within_s: float = WITHIN_S
    ) -> None:
        """Write a buffer into the peer's region. It is there for sure after `flush`.

        A message that is sent later arrives after the written bytes. Raises LinkError.
        """
        by_s = time.monotonic() + within_s
        view = flat(data)
        self._check(remote, offset, len(view), "written" if remote.writable else "")
        for at in range(0, len(view), PIECE_BYTES):
            place = remote.address + offset + at
            entry = self.traffic.piece(view[at : at + PIECE_BYTES], remote.key, place)
            with self._lock:
                self._post(entry, by_s, f"the peer took no write in {within_s:g} s")

    def read(
        self, remote: RemoteRegion, into: memoryview, offset: int = 0, within_s: float = WITHIN_S
    ) -> None:
        """Fill a buffer from the peer's region. Raises LinkError."""
        by_s = time.monotonic() + within_s
        view = flat(into)
        self._check(remote, offset, len(view), "read" if remote.readable else "")
        pieces: deque[Read] = deque()
        doing = f"the peer did not answer a read in {within_s:g} s"
        with self._lock:
            for at in range(0, len(view), PIECE_BYTES):
                if len(pieces) >= PIECES_AT_ONCE:
                    self._finish(pieces.popleft(), by_s, doing)
                piece = Read(view[at : at + PIECE_BYTES])
                entry = Entry(
                    Kind.READ,
                    size=len(piece.into),
                    target=remote.key,
                    offset=remote.address + offset + at,
                    into=piece.into,
                )
                number = self._post(entry, by_s, doing, piece)
                assert number
                pieces.append(piece)
            for piece in pieces:
                self._finish(piece, by_s, doing)

    # The link itself.

    @property
    def message_bytes_max(self) -> int:
        """The most bytes of one message to this peer."""
        return self.agreed.message_bytes_max

    def stats(self) -> LinkStats:
        """Return the counts of this link."""
        with self._lock:
            traffic = self.traffic
            return LinkStats(
                transport=self.transport,
                peer=self.peer,
                connected=self.progress.wire is not None,
                reconnections=self.progress.reconnections,
                sent_bytes=traffic.sent_bytes,
                received_bytes=traffic.received_bytes,
                compressed=traffic.compressed,
                repeated=traffic.session.repeated,
                doubled=traffic.session.doubled,
                unacknowledged=len(traffic.session.unacknowledged),
            )

    def close(self) -> None:
        """End the link; waits at most a second for the peer to acknowledge what was sent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            with suppress(LinkError):
                by_s = time.monotonic() + LINGER_S
                self._flush(by_s, LINGER_S)
                self.traffic.closing = True
                self.progress.until(self._transmitted, by_s, "closing")
            self.progress.end(LinkError(Cause.CLOSED, self.peer, "this side closed the link"))
        self.progress.stop()
        self.carrier.close()
        self._forget()

    def __enter__(self) -> "Link":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, wire: Wire) -> None:
        """Begin with the first connection; called once by the transport."""
        self.progress.start(wire)

    def _post(self, entry: Entry, by_s: float, doing: str, read: Read | None = None) -> int:
        session = self.traffic.session
        if not session.may_send(entry.kind):
            self.progress.until(lambda: session.may_send(entry.kind), by_s, doing)
        if self.progress.dead is not None:
            raise self.progress.why()
        number = self.traffic.add(entry)
        if read is not None:
            self.traffic.reads[number] = read
        if not self._transmitted():
            self.progress.until(self._transmitted, by_s, doing)
        return number

    def _transmitted(self) -> bool:
        """Hand what is queued to the connection; return whether nothing is left."""
        self.progress.transmit()
        session = self.traffic.session
        return session.next_entry() is None and not self.traffic.closing

    def _flush(self, by_s: float, within_s: float) -> None:
        session = self.traffic.session
        last = session.sent
        if session.acknowledged < last:
            self.traffic.asks = True
            self.progress.transmit()
            doing = f"the peer did not acknowledge {last - session.acknowledged} frames"
            self.progress.until(
                lambda: session.acknowledged >= last, by_s, f"{doing} in {within_s:g} s"
            )
        if self.traffic.refused:
            refused, self.traffic.refused = self.traffic.refused[0], []
            raise LinkError(Cause.REGION, self.peer, f"the peer refused a write: {refused}")

    def _finish(self, piece: Read, by_s: float, doing: str) -> None:
        self.progress.until(lambda: piece.done, by_s, doing)
        if piece.refused:
            raise LinkError(Cause.REGION, self.peer, f"the peer refused a read: {piece.refused}")

    def _check(self, remote: RemoteRegion, offset: int, size: int, allowed: str) -> None:
        if not allowed:
            rights = f"readable: {remote.readable}, writable: {remote.writable}"
            raise LinkError(Cause.REGION, self.peer, f"the region does not allow this ({rights})")
        if offset < 0 or offset + size > remote.size:
            detail = f"bytes {offset} to {offset + size} of a region of {remote.size} bytes"
            raise LinkError(Cause.REGION, self.peer, f"{detail} cannot be {allowed}")

    def _release(self, slot: Slot) -> None:
        with self._lock:
            self.traffic.put_slot(slot)
            self.traffic.session.release()
            if self.traffic.session.owes():
                self.progress.transmit()

    def _take_back(self, key: int, close: Callable[[], None]) -> None:
        with self._lock:
            if self.traffic.regions.pop(key, None) is not None:
                close()

    def _ended(self, cause: Cause, why: str) -> None:
        self.progress.end(LinkError(cause, self.peer, why))
