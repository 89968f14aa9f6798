"""Open links: dial a peer, or listen for peers that dial.

Every connection begins with the handshake of `handshake.py`; a link's later connections repeat it
with the same session. Tests: tests/contract/test_transport.py, tests/attack/test_transport.py.
"""

import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from libs.job.transport import checksums, compression, verbs
from libs.job.transport import handshake as h
from libs.job.transport.access import Access
from libs.job.transport.errors import Cause, LinkError, WireFault
from libs.job.transport.link import WITHIN_S, Link
from libs.job.transport.progress import Connected
from libs.job.transport.rdma import RdmaCarrier
from libs.job.transport.tcp import TcpCarrier
from libs.job.transport.traffic import Agreed, Carrier, Options

# Connections that may be in their handshake at once; more wait in the kernel's queue.
HANDSHAKES_MAX: Final = 32
BACKLOG: Final = 128
# Links that were opened and not accepted by the program yet.
WAITING_MAX: Final = 64
# Causes that do not pass by waiting.
FINAL: Final = (Cause.REFUSED, Cause.NO_RDMA, Cause.REGION)
LOOK_S: Final = 0.2
DIAL_AGAIN_S: Final = 0.05


class Transport(Protocol):
    """A way to open links. `TcpTransport` runs anywhere; `RdmaTransport` needs verbs."""

    name: str

    def listen(self, host: str, port: int = 0) -> "Listener":
        """Listen for peers. Raises LinkError."""

    def connect(self, address: str, within_s: float = WITHIN_S) -> Link:
        """Open a link to the listener at `host:port`. Raises LinkError."""


class TcpTransport:
    """Links over TCP."""

    def __init__(self, access: Access, options: Options | None = None) -> None:
        self.name = "tcp"
        self._opening = Opening(access, options or Options(), self.name, TcpCarrier)

    def listen(self, host: str, port: int = 0) -> "Listener":
        """Listen for peers. Raises LinkError."""
        return Listener(self._opening, host, port)

    def connect(self, address: str, within_s: float = WITHIN_S) -> Link:
        """Open a link to the listener at `host:port`. Raises LinkError."""
        return dialled(self._opening, address, within_s)


class RdmaTransport:
    """Links over RDMA. The listener's address is one of TCP, over which the two sides meet."""

    def __init__(self, access: Access, options: Options | None = None) -> None:
        """Find an active port. Raises LinkError NO_RDMA, with the reason."""
        self.name = "rdma"
        self.port = verbs.usable_port()
        wanted = options or Options()
        self._opening = Opening(
            access, wanted, self.name, lambda: RdmaCarrier(self.port, wanted.buffers)
        )

    def listen(self, host: str, port: int = 0) -> "Listener":
        """Listen for peers. Raises LinkError."""
        return Listener(self._opening, host, port)

    def connect(self, address: str, within_s: float = WITHIN_S) -> Link:
        """Open a link to the listener at `host:port`. Raises LinkError."""
        return dialled(self._opening, address, within_s)


def chosen(access: Access, options: Options | None = None) -> tuple[Transport, str]:
    """Return RDMA if this machine has it, else TCP, and why."""
    try:
        transport = RdmaTransport(access, options)
    except LinkError as error:
        return TcpTransport(access, options), f"TCP: {error.detail}"
    port = transport.port
    return transport, f"RDMA: port {port.device}/{port.number} is active"


class Opening:
    """The common part of both ways to open a link. `carrier` makes a new carrier for each link."""

    def __init__(
        self, access: Access, options: Options, wire: str, carrier: Callable[[], Carrier]
    ) -> None:
        self.access = access
        self.options = options
        self.wire = wire
        self.carrier = carrier

    def hello(self, session: str, received: int, wire: str) -> h.Hello:
        """Return this side's first message."""
        return h.Hello(
            session=session,
            received=received,
            buffers=self.options.buffers,
            buffer_bytes=self.options.buffer_bytes,
            checksums=self.options.checksums,
            zstd=wire == TcpCarrier.name and compression.zstd() is not None,
            wire=wire,
        )

    def agreed(self, name: str, own: h.Hello, peer: h.Hello) -> Agreed:
        """Return what both hellos have in common."""
        return Agreed(
            peer=name,
            session=own.session,
            granted=peer.buffers,
            message_bytes_max=peer.buffer_bytes,
            checksum=checksums.common(own.checksums, peer.checksums),
            zstd=own.zstd and peer.zstd,
        )


def host_and_port(address: str) -> tuple[str, int]:
    """Return the parts of `host:port` or `[v6]:port`. Raises LinkError."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise LinkError(Cause.ADDRESS, address, f"{address!r} is not of the form host:port")
    return host.strip("[]"), int(port)


def dialled(opening: Opening, address: str, within_s: float) -> Link:
    """Open a link; try again until the time is over. Raises LinkError."""
    host_and_port(address)
    by_s = time.monotonic() + within_s
    while True:
        carrier: Carrier | None = None
        try:
            carrier = opening.carrier()
            return _first(opening, carrier, address, by_s)
        except WireFault as fault:
            if carrier is not None:
                carrier.close()
            if fault.cause in FINAL or time.monotonic() + DIAL_AGAIN_S >= by_s:
                raise LinkError(fault.cause, address, fault.detail) from fault
        time.sleep(DIAL_AGAIN_S)


def _first(opening: Opening, carrier: Carrier, address: str, by_s: float) -> Link:
    own = opening.hello(secrets.token_hex(h.NONCE_BYTES), -1, carrier.name)
    stream, name, peer, answer = _handshake(opening, carrier, address, own, by_s)
    agreed = opening.agreed(name, own, peer)
    link = Link(
        agreed, carrier, opening.options, lambda link, by: _again(opening, link, address, by)
    )
    try:
        wire = carrier.wire(
            stream, answer.wire, link.traffic.session, link.traffic, agreed.checksum
        )
    except WireFault:
        stream.close()
        raise
    link.start(wire)
    return link


def _again(opening: Opening, link: Link, address: str, by_s: float) -> Connected:
    """Make another connection of a link. Raises WireFault."""
    received = link.traffic.session.received
    own = opening.hello(link.agreed.session, received, link.transport)
    stream, name, _, answer = _handshake(opening, link.carrier, address, own, by_s)
    if name != link.peer:
        stream.close()
        raise WireFault(Cause.LOST, f"{name} answers at {address} now")
    wire = link.carrier.wire(
        stream, answer.wire, link.traffic.session, link.traffic, link.agreed.checksum
    )
    return wire, answer.received


def _handshake(
    opening: Opening, carrier: Carrier, address: str, own: h.Hello, by_s: float
) -> tuple[socket.socket, str, h.Hello, h.Answer]:
    """The dialer's side. Raises WireFault."""
    by_s = min(by_s, time.monotonic() + h.HANDSHAKE_S)
    try:
        stream = socket.create_connection(
            host_and_port(address), timeout=max(0.001, by_s - time.monotonic())
        )
    except OSError as error:
        why = error.strerror or error
        raise WireFault(Cause.BROKEN, f"no connection to {address}: {why}") from error
    try:
        conversation = h.Conversation(stream, address, by_s)
        mine = own.pack()
        conversation.send(mine)
        theirs = conversation.take()
        peer = h.unpack_hello(theirs)
        said = h.transcript(mine, theirs)
        proof = opening.access.prove("dial", said)
        conversation.send(h.pack_answer(h.Answer(proof, max(0, own.received), carrier.offer(None))))
        answer = h.unpack_answer(conversation.take())
        name = h.checked(opening.access, "listen", said, answer.proof)
    except WireFault:
        stream.close()
        raise
    return stream, name, peer, answer


class Listener:
    """Accepts peers at `address` in a thread of its own, until it is closed."""

    def __init__(self, opening: Opening, host: str, port: int) -> None:
        self._opening = opening
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._server = socket.create_server((host, port), family=family, backlog=BACKLOG)
        except OSError as error:
            detail = f"cannot listen at {host}:{port}: {error.strerror or error}"
            raise LinkError(Cause.ADDRESS, f"{host}:{port}", detail) from error
        self._server.settimeout(LOOK_S)
        bound = self._server.getsockname()
        self.port: int = bound[1]
        self.address = f"[{bound[0]}]:{bound[1]}" if ":" in bound[0] else f"{bound[0]}:{bound[1]}"
        self.refused = 0
        self.last_refusal = ""
        self._changed = threading.Condition()
        self._links: dict[str, Link] = {}
        self._waiting: deque[Link] = deque()
        self._handshakes = 0
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="muster-listen", daemon=True)
        self._thread.start()

    def accept(self, within_s: float = WITHIN_S) -> Link:
        """Return the next new link. Raises LinkError."""
        by_s = time.monotonic() + within_s
        with self._changed:
            while not self._waiting:
                left_s = by_s - time.monotonic()
                if self._closed or left_s <= 0:
                    cause = Cause.CLOSED if self._closed else Cause.STALLED
                    last = f"; the last refusal: {self.last_refusal}" if self.last_refusal else ""
                    detail = f"no peer opened a link in {within_s:g} s{last}"
                    raise LinkError(cause, f"listener {self.address}", detail)
                self._changed.wait(left_s)
            return self._waiting.popleft()

    def close(self) -> None:
        """Take no more connections. Links that were accepted live on, without reconnection."""
        with self._changed:
            self._closed = True
            waiting, self._waiting = list(self._waiting), deque()
            self._changed.notify_all()
        self._thread.join()
        self._server.close()
        for link in waiting:
            link.close()

    def __enter__(self) -> "Listener":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self) -> None:
        while not self._closed:
            with self._changed:
                if self._handshakes >= HANDSHAKES_MAX:
                    self._changed.wait(LOOK_S)
                    continue
            try:
                stream, where = self._server.accept()
            except TimeoutError:
                continue
            except OSError:  # for example no descriptor is left: those that are open may end
                time.sleep(LOOK_S)
                continue
            with self._changed:
                self._handshakes += 1
            threading.Thread(
                target=self._answer, args=(stream, where), name="muster-accept", daemon=True
            ).start()

    def _answer(self, stream: socket.socket, where: tuple[str, int]) -> None:
        peer = f"{where[0]}:{where[1]}"
        conversation = h.Conversation(stream, peer, time.monotonic() + h.HANDSHAKE_S)
        try:
            self._shake(conversation)
        except WireFault as fault:
            with self._changed:
                self.refused += 1
                self.last_refusal = f"{peer}: {fault.detail}"
            if fault.cause not in (Cause.STALLED, Cause.BROKEN):
                with suppress(WireFault):
                    conversation.send(h.pack_refusal(fault))
            stream.close()
        finally:
            with self._changed:
                self._handshakes -= 1
                self._changed.notify_all()

    def _shake(self, conversation: h.Conversation) -> None:
        """The listener's side of the handshake. Raises WireFault."""
        theirs = conversation.take()
        peer = h.unpack_hello(theirs)
        known = self._links.get(peer.session)
        wire = self._opening.wire
        if peer.wire != wire:
            raise WireFault(Cause.REFUSED, f"this listener serves {wire}, not {peer.wire}")
        own = self._opening.hello(peer.session, -1, wire)
        mine = own.pack()
        conversation.send(mine)
        said = h.transcript(theirs, mine)
        answer = h.unpack_answer(conversation.take())
        name = h.checked(self._opening.access, "dial", said, answer.proof)
        proof = self._opening.access.prove("listen", said)
        if known is None and peer.received >= 0:
            raise WireFault(Cause.LOST, "this listener does not know the link (was it restarted?)")
        if known is None:
            self._begin(conversation, self._opening.agreed(name, own, peer), proof, answer)
        elif known.peer != name:
            raise WireFault(Cause.REFUSED, f"the link belongs to {known.peer}, not to {name}")
        else:
            self._resume(conversation, known, proof, answer)

    def _begin(
        self, conversation: h.Conversation, agreed: Agreed, proof: bytes, answer: h.Answer
    ) -> None:
        with self._changed:
            if len(self._waiting) >= WAITING_MAX or self._closed:
                raise WireFault(Cause.REFUSED, f"{WAITING_MAX} links wait to be accepted")
        carrier = self._opening.carrier()
        try:
            link = self._link(conversation, carrier, agreed, proof, answer)
        except WireFault:
            carrier.close()
            raise
        with self._changed:
            self._waiting.append(link)
            self._changed.notify_all()

    def _link(
        self,
        conversation: h.Conversation,
        carrier: Carrier,
        agreed: Agreed,
        proof: bytes,
        answer: h.Answer,
    ) -> Link:
        """Return a new link over this connection. Raises WireFault."""
        link = Link(
            agreed,
            carrier,
            self._opening.options,
            None,
            lambda: self._forget(agreed.session),
        )
        conversation.send(h.pack_answer(h.Answer(proof, 0, carrier.offer(answer.wire))))
        wire = carrier.wire(
            conversation.stream, answer.wire, link.traffic.session, link.traffic, agreed.checksum
        )
        self._links[agreed.session] = link
        link.start(wire)
        return link

    def _forget(self, session: str) -> None:
        self._links.pop(session, None)

    def _resume(
        self, conversation: h.Conversation, link: Link, proof: bytes, answer: h.Answer
    ) -> None:
        received = link.progress.suspend()
        offer = link.carrier.offer(answer.wire)
        conversation.send(h.pack_answer(h.Answer(proof, received, offer)))
        wire = link.carrier.wire(
            conversation.stream,
            answer.wire,
            link.traffic.session,
            link.traffic,
            link.agreed.checksum,
        )
        link.progress.adopt(wire, answer.received)
