"""A link's connection over RDMA: one reliable queue pair, whose two ends meet over TCP.

The handshake is that of TCP, and its socket stays open to notice that the peer ended. Frames are
sent from the caller's memory and received into registered buffers. Reads and writes are carried out
by the network card; a frame without payload follows each, so that numbers, replay and order are
those of TCP. Tests: tests/contract/test_transport.py in the guest of `make rdma`.
"""

import select
import socket
import time
from collections.abc import Callable
from typing import Any, Final

from libs.job.transport import checksums, verbs
from libs.job.transport.errors import Cause, WireFault
from libs.job.transport.frames import HEADER_BYTES, BadFrame, Flag, Header, Kind, decode, encode
from libs.job.transport.memory import Slot, allocate
from libs.job.transport.proof import PROVE_S, PROVES, say_ready, take_ready
from libs.job.transport.queue_pair import SENDS_MAX, QueuePair
from libs.job.transport.session import Entry, ProtocolError, Session
from libs.job.transport.sink import Sink
from libs.job.transport.verbs import Foreign

# Receive buffers beside those of messages, for acknowledgements and the frames after writes.
CONTROL_SLOTS: Final = 16
COMPLETIONS_AT_ONCE: Final = 32
# The completion queue is polled for so long before the thread sleeps until an event.
SPIN_S: Final = 50e-6


class RdmaCarrier:
    """The RDMA objects of a link, for all its connections: device, domain and registrations."""

    name: Final = "rdma"

    def __init__(self, port: verbs.Port, buffers: int) -> None:
        self._receives = buffers + CONTROL_SLOTS
        self.verbs = verbs.modules()
        self.port = port
        try:
            self.context = self.verbs.Context(name=port.device)
            self.domain = self.verbs.PD(self.context)
            self.mtu = int(self.context.query_port(port.number).active_mtu)
        except self.verbs.PyverbsError as error:
            raise WireFault(Cause.NO_RDMA, f"{port.device} cannot be opened: {error}") from error
        self.regions: dict[int, tuple[int, int, Any]] = {}
        self._pair: QueuePair | None = None
        self._slots: list[Slot] = []

    def slots(self, count: int, size: int) -> list[Slot]:
        """Return registered receive buffers."""
        for _ in range(count + CONTROL_SLOTS):
            slot = Slot(size, HEADER_BYTES)
            slot.note = self.memory(slot.whole, self.verbs.IBV_ACCESS_LOCAL_WRITE)
            self._slots.append(slot)
        return list(self._slots)

    def memory(self, view: memoryview, access: int) -> Foreign:
        """Register memory with the card; the caller closes what this returns. Raises WireFault."""
        try:
            return self.verbs.MR(self.domain, len(view), access, address=verbs.address_of(view))
        except self.verbs.PyverbsError as error:
            detail = f"{len(view)} bytes cannot be registered ({error}): check `ulimit -l`"
            raise WireFault(Cause.REGION, detail) from error

    def register(
        self, view: memoryview, readable: bool, writable: bool
    ) -> tuple[int, int, Callable[[], None]]:
        """Return key and address of a region, and what takes it back."""
        access = self.verbs.IBV_ACCESS_LOCAL_WRITE
        access |= self.verbs.IBV_ACCESS_REMOTE_READ if readable else 0
        access |= self.verbs.IBV_ACCESS_REMOTE_WRITE if writable else 0
        region = self.memory(view, access)
        address = verbs.address_of(view)
        self.regions[region.rkey] = (address, address + len(view), region)
        key = int(region.rkey)
        return key, address, lambda: self._take_back(key)

    def local(self, view: memoryview, access: int) -> tuple[int, Any]:
        """Return the local key of memory, and what to close after use, if anything."""
        first = verbs.address_of(view)
        for begin, end, region in self.regions.values():
            if begin <= first and first + len(view) <= end:
                return int(region.lkey), None
        region = self.memory(view, access)
        return int(region.lkey), region

    def offer(self, peer: dict[str, Any] | None) -> dict[str, Any]:
        """Make the queue pair of the next connection and return its address."""
        if self._pair is not None:
            self._pair.close()
        try:
            self._pair = QueuePair(self, self._receives)
            if peer is not None:
                self._pair.connect(peer)
        except self.verbs.PyverbsError as error:
            raise WireFault(Cause.NO_RDMA, f"no queue pair: {error}") from error
        return {**self._pair.address, PROVES: True}

    def wire(
        self,
        stream: socket.socket,
        peer: dict[str, Any],
        session: Session,
        sink: Sink,
        checksum: str,
    ) -> "RdmaWire":
        """Return the connection after its handshake."""
        pair, self._pair = self._pair, None
        assert pair is not None
        try:
            if not pair.connected:
                pair.connect(peer)
                self._prove(pair)
                say_ready(stream, peer)
            else:
                take_ready(stream, peer)
            return RdmaWire(self, pair, stream, session, sink, checksum)
        except (WireFault, OSError, self.verbs.PyverbsError) as error:
            pair.close()
            stream.close()
            cause = error.cause if isinstance(error, WireFault) else Cause.BROKEN
            raise WireFault(cause, f"the queue pair failed: {error}") from error

    def _prove(self, pair: QueuePair) -> None:
        view = allocate(1)
        memory = self.memory(view, 0)
        try:
            place = self.verbs.SGE(verbs.address_of(view), 0, memory.lkey)
            pair.prove(place, time.monotonic() + PROVE_S)
        finally:
            memory.close()

    def close(self) -> None:
        """Free everything; the link's connection is closed already."""
        if self._pair is not None:
            self._pair.close()
        for slot in self._slots:
            slot.note.close()
        for _, _, region in self.regions.values():
            region.close()
        self.regions.clear()
        self.domain.close()
        self.context.close()

    def _take_back(self, key: int) -> None:
        found = self.regions.pop(key, None)
        if found is not None:
            found[2].close()


class RdmaWire:
    """One connection over a queue pair."""

    def __init__(
        self,
        carrier: RdmaCarrier,
        pair: QueuePair,
        stream: socket.socket,
        session: Session,
        sink: Sink,
        checksum: str,
    ) -> None:
        self._carrier = carrier
        self._lib = carrier.verbs
        self._pair = pair
        self._stream = stream
        stream.setblocking(False)
        self._session = session
        self._sink = sink
        self._sum = checksums.maker(checksum)
        self._posted: dict[int, Slot] = {}
        self._sending: dict[int, tuple[Any, ...]] = {}
        self._seen: list[Any] = []
        self._next = 0
        heads = allocate(SENDS_MAX * HEADER_BYTES)
        self._heads = heads
        self._heads_at = verbs.address_of(heads)
        self._heads_memory = carrier.memory(heads, 0)
        self._free_heads = list(range(SENDS_MAX))
        self._post_slots()

    def pump(self) -> bool:
        """Take the completions that are there; return whether there were any."""
        found, self._seen = self._seen, []
        found += self._poll()
        for completion in found:
            self._completed(completion)
        self._post_slots()
        if not found:
            self._check_stream()
        return bool(found)

    def transmit(self) -> bool:
        """Post what the session has; False if the send queue is full for now."""
        self._post_slots()
        try:
            while True:
                if len(self._sending) + 2 > SENDS_MAX:
                    return False
                entry = self._session.next_entry()
                head = self._sink.header(entry) if entry is not None else self._sink.control()
                if head is None:
                    return True
                self._post(head, entry)
                if entry is not None:
                    self._session.transmitted()
        except self._lib.PyverbsError as error:
            raise WireFault(Cause.BROKEN, f"the queue pair takes no frame: {error}") from error

    def wait(self, wake: int, until_s: float) -> None:
        """Poll for a moment, then sleep until an event, the peer's end or the time."""
        spin_s = time.monotonic() + SPIN_S
        while time.monotonic() < spin_s:
            if self._look():
                return
        try:
            self._pair.queue.req_notify()
        except self._lib.PyverbsError as error:
            raise WireFault(Cause.BROKEN, f"the completion queue failed: {error}") from error
        if self._look():
            return
        poll = select.poll()
        for descriptor in (self._pair.descriptor, wake, self._stream.fileno()):
            poll.register(descriptor, select.POLLIN)
        ready = poll.poll(max(0.0, until_s - time.monotonic()) * 1000)
        if any(descriptor == self._pair.descriptor for descriptor, _ in ready):
            self._pair.channel.get_cq_event(self._pair.queue)
            self._pair.queue.ack_events(1)

    def fail(self) -> None:
        """Break the connection, as a failing card does; for tests."""
        self._pair.fail()

    def close(self) -> None:
        """End the connection; buffers that hold no message go back to the link."""
        self._pair.fail()
        self._pair.close()
        for kept in self._sending.values():
            self._free(kept)
        self._heads_memory.close()
        for slot in self._posted.values():
            self._sink.put_slot(slot)
        self._posted.clear()
        self._stream.close()

    def _look(self) -> bool:
        found = self._poll()
        self._seen += found
        return bool(found)

    def _poll(self) -> list[Foreign]:
        try:
            _, found = self._pair.queue.poll(COMPLETIONS_AT_ONCE)
        except self._lib.PyverbsError as error:
            raise WireFault(Cause.BROKEN, f"the completion queue failed: {error}") from error
        return list(found)

    def _check_stream(self) -> None:
        try:
            data = self._stream.recv(1)
        except BlockingIOError:
            return
        except OSError as error:
            raise WireFault(Cause.BROKEN, f"the connection failed: {error.strerror}") from error
        what = "closed the connection" if not data else "sent bytes after the handshake"
        raise WireFault(Cause.BROKEN, f"the peer {what}")

    def _post_slots(self) -> None:
        """Let the card fill the receive buffers that are free."""
        for slot in self._sink.take_slots():
            self._next += 1
            self._posted[self._next] = slot
            place = self._lib.SGE(verbs.address_of(slot.whole), len(slot.whole), slot.note.lkey)
            request = self._lib.RecvWR(wr_id=self._next, num_sge=1, sg=[place])
            try:
                self._pair.pair.post_recv(request)
            except self._lib.PyverbsError as error:
                raise WireFault(Cause.BROKEN, f"no buffer can be posted: {error}") from error

    def _post(self, head: Header, entry: Entry | None) -> None:
        lib = self._lib
        fence = 0
        if entry is not None and entry.kind in (Kind.WRITE, Kind.READ):
            head = head._replace(length=0, checksum=0, flags=head.flags | Flag.DIRECT)
            if not entry.refused:
                self._post_direct(entry)
                fence = lib.IBV_SEND_FENCE if entry.kind is Kind.READ else 0
        at = self._free_heads.pop() * HEADER_BYTES
        self._heads[at : at + HEADER_BYTES] = encode(head)
        parts = [lib.SGE(self._heads_at + at, HEADER_BYTES, self._heads_memory.lkey)]
        region = None
        if head.length and entry is not None:
            key, region = self._carrier.local(entry.payload, 0)
            parts.append(lib.SGE(verbs.address_of(entry.payload), head.length, key))
        self._send(
            lib.SendWR(
                wr_id=self._next + 1,
                num_sge=len(parts),
                sg=parts,
                opcode=lib.IBV_WR_SEND,
                send_flags=lib.IBV_SEND_SIGNALED | fence,
            ),
            (at // HEADER_BYTES, region, None, None),
        )

    def _post_direct(self, entry: Entry) -> None:
        """Have the card read or write the peer's region."""
        lib = self._lib
        reads = entry.kind is Kind.READ
        view = entry.into if reads else entry.payload
        key, region = self._carrier.local(view, lib.IBV_ACCESS_LOCAL_WRITE if reads else 0)
        request = lib.SendWR(
            wr_id=self._next + 1,
            num_sge=1,
            sg=[lib.SGE(verbs.address_of(view), len(view), key)],
            opcode=lib.IBV_WR_RDMA_READ if reads else lib.IBV_WR_RDMA_WRITE,
            send_flags=lib.IBV_SEND_SIGNALED,
        )
        request.set_wr_rdma(entry.target, entry.offset)
        self._send(request, (-1, region, entry, view))

    def _send(self, request: Foreign, kept: tuple[Any, ...]) -> None:
        self._next += 1
        self._sending[self._next] = kept
        self._pair.pair.post_send(request)

    def _free(self, kept: tuple[Any, ...]) -> None:
        head, region = kept[0], kept[1]
        if head >= 0:
            self._free_heads.append(head)
        if region is not None:
            region.close()

    def _completed(self, completion: Foreign) -> None:
        kept = self._sending.pop(completion.wr_id, None)
        if completion.status != self._lib.IBV_WC_SUCCESS:
            self._failed(completion, kept)
        if kept is not None:
            self._free(kept)
            if kept[2] is not None and kept[2].kind is Kind.READ:
                self._sink.read_done(kept[2].number)
            return
        slot = self._posted.pop(completion.wr_id)
        if not self._arrived(slot, completion.byte_len):
            self._sink.put_slot(slot)

    def _failed(self, completion: Foreign, kept: tuple[Any, ...] | None) -> None:
        """Raise WireFault; a refused access is taken out, so that it is not repeated."""
        lib = self._lib
        if kept is not None:
            self._free(kept)
            refused = (lib.IBV_WC_REM_ACCESS_ERR, lib.IBV_WC_REM_INV_REQ_ERR, lib.IBV_WC_REM_OP_ERR)
            if kept[2] is not None and completion.status in refused:
                self._sink.access_refused(kept[2], "its card allows no such access")
        text = verbs.status_name(lib, completion.status)
        raise WireFault(Cause.BROKEN, f"the queue pair failed: {text}")

    def _arrived(self, slot: Slot, size: int) -> bool:
        try:
            header = decode(slot.whole[:HEADER_BYTES])
        except BadFrame as error:
            self._sink.put_slot(slot)
            raise WireFault(Cause.CORRUPT, f"the peer sent {error}") from None
        payload = slot.view[: header.length]
        right = size == HEADER_BYTES + header.length
        if right and header.length:
            right = checksums.of(self._sum, payload) == header.checksum
        if not right:
            self._sink.put_slot(slot)
            detail = f"frame {header.number} ({header.kind.name}) has a wrong length or checksum"
            raise WireFault(Cause.CORRUPT, detail)
        try:
            self._sink.check(header)
            return self._sink.arrived(header, payload, slot)
        except (WireFault, ProtocolError):
            self._sink.put_slot(slot)
            raise
