"""The frames of one link: what goes out, and where each arriving frame belongs.

All methods run under the link's lock, except `packed`. A write beyond a region, or to a key that
the peer was not given, changes nothing: the answer is a FAULT. Tests:
tests/contract/test_transport.py, tests/attack/test_transport.py.
"""

import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from libs.job.transport import checksums, compression
from libs.job.transport.errors import Cause, WireFault
from libs.job.transport.frames import NUMBERED, Flag, Header, Kind
from libs.job.transport.memory import Region, Slot
from libs.job.transport.progress import Wire
from libs.job.transport.session import WINDOW, Entry, ProtocolError, Session
from libs.job.transport.sink import Sink

# Reads and writes travel in pieces of at most this size.
PIECE_BYTES: Final = 1 << 20
FAULT_BYTES_MAX: Final = 200
RATE_WEIGHT: Final = 0.25


@dataclass(frozen=True)
class Options:
    """Settings of one side of a link.

    Attributes:
        buffers, buffer_bytes: receive buffers; a message is at most one buffer long.
        compress: `auto` (when it pays), `always` (when the data shrink) or `never`.
        checksums: kinds that this side offers, the best first.
        give_up_s: the link ends when it had no connection for so long.
    """

    buffers: int = 16
    buffer_bytes: int = 1 << 20
    compress: str = "auto"
    checksums: tuple[str, ...] = checksums.available()
    give_up_s: float = 60.0


@dataclass(frozen=True)
class Agreed:
    """The result of the handshake."""

    peer: str
    session: str
    granted: int
    message_bytes_max: int
    checksum: str
    zstd: bool


class Carrier(Protocol):
    """A kind of connection: TCP or RDMA. It outlives each of a link's connections."""

    @property
    def name(self) -> str:
        """The kind: `tcp` or `rdma`."""

    def slots(self, count: int, size: int) -> list[Slot]:
        """Return receive buffers."""

    def register(
        self, view: memoryview, readable: bool, writable: bool
    ) -> tuple[int, int, Callable[[], None]]:
        """Return key and address of a region, and what takes it back."""

    def offer(self, peer: dict[str, Any] | None) -> dict[str, Any]:
        """Return what the peer must know of the next connection.

        `peer` is the peer's offer, if this side is the second to speak. Raises WireFault.
        """

    def wire(
        self,
        stream: socket.socket,
        peer: dict[str, Any],
        session: Session,
        sink: Sink,
        checksum: str,
    ) -> Wire:
        """Return the connection after its handshake. Raises WireFault."""

    def close(self) -> None:
        """Free what the carrier holds."""


class Read:
    """A piece of a read that the peer has not answered."""

    def __init__(self, into: memoryview) -> None:
        self.into = into
        self.done = False
        self.refused = ""


class Traffic:
    """The frames of one link."""

    def __init__(self, agreed: Agreed, options: Options, carrier: Carrier) -> None:
        self.session = Session(options.buffers, agreed.granted)
        self.messages: deque[tuple[Slot, memoryview]] = deque()
        self.regions: dict[int, Region] = {}
        self.reads: dict[int, Read] = {}
        self.refused: list[str] = []
        self.asks = False
        self.closing = False
        self.sent_bytes = 0
        self.received_bytes = 0
        self.compressed = 0
        self.bytes_per_s = 0.0
        self.moved: Callable[[], None] = lambda: None
        self.ended: Callable[[Cause, str], None] = lambda cause, why: None
        self._options = options
        self._sum = checksums.maker(agreed.checksum)
        self._zstd: Any = compression.zstd() if agreed.zstd else None
        self._free = carrier.slots(options.buffers, options.buffer_bytes)
        self._filling: Slot | None = None
        self._refusing = ""
        self._in_flight = 0

    # Going out.

    def packed(self, view: memoryview) -> Entry:
        """Return a message's entry, compressed if that pays."""
        payload: Any = view
        flags = Flag.NONE
        if self._zstd is not None and self._pays(view):
            data = self._zstd.compress(view)
            if len(data) < len(view):
                payload, flags = memoryview(data), Flag.ZSTD
        return self._entry(Kind.MESSAGE, payload, size=len(view), flags=flags)

    def piece(self, view: memoryview, target: int, offset: int) -> Entry:
        """Return the entry of a write."""
        return self._entry(Kind.WRITE, view, size=len(view), target=target, offset=offset)

    def add(self, entry: Entry) -> int:
        """Queue an entry, and remember when."""
        size = len(entry.payload)
        self._in_flight += size
        entry.note = (time.monotonic(), self._in_flight)
        self.sent_bytes += size
        self.compressed += bool(entry.flags & Flag.ZSTD)
        return self.session.add(entry)

    def done(self, entries: list[Entry]) -> None:
        """Take what the peer acknowledged; learn from it how fast the link is."""
        now_s = time.monotonic()
        for entry in entries:
            size = len(entry.payload)
            self._in_flight -= size
            if size >= compression.THRESHOLD_BYTES:
                begun_s, waiting = entry.note
                rate = waiting / max(1e-6, now_s - begun_s)
                before = self.bytes_per_s or rate
                self.bytes_per_s = before + RATE_WEIGHT * (rate - before)

    def header(self, entry: Entry) -> Header:
        """Return the header of an entry."""
        received, credit = self.session.told()
        return Header(
            kind=entry.kind,
            flags=entry.flags | (Flag.ASKS if self.asks else Flag.NONE),
            length=len(entry.payload),
            size=entry.size,
            number=entry.number,
            received=received,
            credit=credit,
            target=entry.target,
            offset=entry.offset,
            checksum=entry.checksum,
        )

    def control(self) -> Header | None:
        """Return an acknowledgement or a farewell if one is due."""
        if not (self.asks or self.closing or self.session.owes()):
            return None
        kind = Kind.CLOSE if self.closing and not self.asks else Kind.ACK
        flags = Flag.ASKS if self.asks else Flag.NONE
        self.closing = self.closing and kind is Kind.ACK
        self.asks = False
        received, credit = self.session.told()
        return Header(kind, flags, received=received, credit=credit)

    def _entry(
        self,
        kind: Kind,
        payload: memoryview,
        *,
        size: int,
        target: int = 0,
        offset: int = 0,
        flags: Flag = Flag.NONE,
    ) -> Entry:
        checksum = checksums.of(self._sum, payload) if len(payload) else 0
        return Entry(
            kind,
            payload,
            flags=flags,
            size=size,
            target=target,
            offset=offset,
            checksum=checksum,
        )

    def _pays(self, view: memoryview) -> bool:
        if len(view) < compression.THRESHOLD_BYTES or self._options.compress == "never":
            return False
        if self._options.compress == "always":
            return bool(self._zstd.probe(view) <= compression.RATIO_MAX)
        if not 0 < self.bytes_per_s < compression.ZSTD_BYTES_PER_S:
            return False  # the probe would cost more than it could save
        return compression.pays(len(view), self._zstd.probe(view), self.bytes_per_s)

    # Arriving.

    def place(self, header: Header) -> memoryview:
        """Return where a payload belongs: its final place, if it has one."""
        self._refusing = ""
        most = max(PIECE_BYTES, self._options.buffer_bytes)
        if max(header.length, header.size) > most:
            raise ProtocolError(f"a frame of {header.length} bytes: the most are {most}")
        if header.kind not in NUMBERED or not self.session.is_new(header):
            return memoryview(bytearray(header.length))
        if header.kind is Kind.MESSAGE:
            return self._place_message(header)
        if header.kind is Kind.WRITE and not header.flags & Flag.DIRECT:
            return self._place_write(header)
        if header.kind is Kind.DATA:
            return self._place_data(header)
        return memoryview(bytearray(header.length))

    def arrived(self, header: Header, payload: memoryview, slot: Slot | None = None) -> bool:
        """Take a whole frame; return whether the link keeps `slot`, where its payload lies."""
        self.done(self.session.hear(header.received, header.credit))
        self.received_bytes += header.length
        self.moved()
        if header.flags & Flag.ASKS:
            self.session.ask()
        if header.kind is Kind.CLOSE:
            self.ended(Cause.CLOSED, "the peer closed the link")
        if header.kind not in NUMBERED or header.number <= self.session.received:
            return False
        if header.kind is Kind.MESSAGE:
            self._take_message(header, payload, slot)
        self.session.accept(header)
        if header.kind is Kind.WRITE and self._refusing:
            self._answer(header, Kind.FAULT, memoryview(self._refusing.encode()))
        elif header.kind is Kind.READ and not header.flags & Flag.DIRECT:
            self._serve_read(header)
        elif header.kind in (Kind.DATA, Kind.FAULT):
            self._take_answer(header, payload)
        return header.kind is Kind.MESSAGE and not header.flags & Flag.ZSTD

    def restarted(self) -> None:
        """Begin on a new connection: ask again what the peer has, and check what is repeated."""
        self.asks = True
        for entry in self.session.unacknowledged:
            if len(entry.payload) and checksums.of(self._sum, entry.payload) != entry.checksum:
                self.ended(
                    Cause.CHANGED,
                    f"frame {entry.number} must be repeated, and its buffer was changed before "
                    "flush()",
                )

    def check(self, header: Header) -> None:
        """Check a frame that lies in a receive buffer already."""
        direct = header.kind in (Kind.READ, Kind.WRITE) and bool(header.flags & Flag.DIRECT)
        plain = header.kind in (Kind.MESSAGE, Kind.ACK, Kind.CLOSE)
        if (not direct and not plain) or header.flags & Flag.ZSTD:
            raise ProtocolError(f"a {header.kind.name} frame over RDMA (flags {header.flags:#x})")
        if header.kind in NUMBERED:
            self.session.is_new(header)

    def read_done(self, number: int) -> None:
        """Note that the card has carried out a READ."""
        read = self.reads.pop(number, None)
        if read is not None:
            read.done = True

    def access_refused(self, entry: Entry, why: str) -> None:
        """Note that the peer's card refused a read or write."""
        entry.refused = True
        read = self.reads.pop(entry.number, None)
        if read is None:
            self.refused.append(why)
        else:
            read.done, read.refused = True, why

    def take_slots(self) -> list[Slot]:
        """Return the free receive buffers."""
        found, self._free = self._free, []
        return found

    def put_slot(self, slot: Slot) -> None:
        """Take a receive buffer back that holds no message any more."""
        self._free.append(slot)

    def _place_message(self, header: Header) -> memoryview:
        if header.size > self._options.buffer_bytes:
            raise ProtocolError(
                f"a message of {header.size} bytes: a buffer has {self._options.buffer_bytes}"
            )
        if header.flags & Flag.ZSTD:
            if self._zstd is None:
                raise ProtocolError("a compressed message, and none was agreed on")
            return memoryview(bytearray(header.length))
        return self._slot().view[: header.length]

    def _slot(self) -> Slot:
        """Return the buffer that is being filled, also after a connection broke meanwhile."""
        if self._filling is None:
            self._filling = self._free.pop()
        return self._filling

    def _take_message(self, header: Header, payload: memoryview, slot: Slot | None) -> None:
        slot = slot or self._slot()
        view = payload
        if header.flags & Flag.ZSTD:
            slot = self._slot()
            view = slot.view[: header.size]
            try:
                self._zstd.expand(payload, view)
            except ValueError as error:
                raise WireFault(Cause.CORRUPT, f"frame {header.number}: {error}") from None
        if slot is self._filling:
            self._filling = None
        self.messages.append((slot, view))

    def _place_write(self, header: Header) -> memoryview:
        region = self.regions.get(header.target)
        if region is None or not region.remote.writable:
            self._refusing = "no region that may be written has this key"
        elif header.offset + header.length > len(region.view):
            end = header.offset + header.length
            self._refusing = f"a write up to byte {end} of a region of {len(region.view)} bytes"
        if self._refusing or region is None:
            return memoryview(bytearray(header.length))
        return region.view[header.offset : header.offset + header.length]

    def _serve_read(self, header: Header) -> None:
        if self.session.answers_waiting > 2 * WINDOW:
            raise ProtocolError("more reads than the window allows")
        region = self.regions.get(header.target)
        if region is None or not region.remote.readable:
            why = "no region that may be read has this key"
        elif header.offset + header.size > len(region.view):
            end = header.offset + header.size
            why = f"a read up to byte {end} of a region of {len(region.view)} bytes"
        else:
            view = region.view[header.offset : header.offset + header.size]
            self._answer(header, Kind.DATA, view)
            return
        self._answer(header, Kind.FAULT, memoryview(why.encode()))

    def _answer(self, header: Header, kind: Kind, payload: memoryview) -> None:
        self.add(self._entry(kind, payload, size=len(payload), target=header.number))

    def _place_data(self, header: Header) -> memoryview:
        read = self.reads.get(header.target)
        if read is None or read.done or len(read.into) != header.length:
            raise ProtocolError(f"an answer to frame {header.target}, which is no open read")
        return read.into

    def _take_answer(self, header: Header, payload: memoryview) -> None:
        read = self.reads.pop(header.target, None)
        why = bytes(payload[:FAULT_BYTES_MAX]).decode(errors="replace")
        if read is None:
            self.refused.append(why)
            return
        read.done = True
        read.refused = why if header.kind is Kind.FAULT else ""
