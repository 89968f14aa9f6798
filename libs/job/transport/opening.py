"""The dialling side of links: the handshake, the first connection, and every later one.

Every connection begins with the handshake of `handshake.py`; a link's later connections repeat it
with the same session. Tests: tests/contract/test_transport.py, tests/attack/test_transport.py.
"""

import re
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from typing import Final

from libs.job.transport import checksums, compression
from libs.job.transport import handshake as h
from libs.job.transport.access import Access
from libs.job.transport.errors import Cause, LinkError, WireFault
from libs.job.transport.link import Link
from libs.job.transport.progress import Connected
from libs.job.transport.tcp import TcpCarrier
from libs.job.transport.traffic import Agreed, Carrier, Options

# Causes that do not pass by waiting.
FINAL: Final = (Cause.REFUSED, Cause.NO_RDMA, Cause.REGION, Cause.ADDRESS)
# A peer may name an address, so digits are those of ASCII.
PORT: Final = re.compile(r"[0-9]{1,5}")
PORT_MAX: Final = 65_535
ADDRESS_SHOWN: Final = 100
DIAL_AGAIN_S: Final = 0.05


class Opening:
    """The parts that both sides of a link need.

    `carriers` make a new carrier for each link, by wire. Raises WireFault if that fails.
    """

    def __init__(
        self, access: Access, options: Options, carriers: Mapping[str, Callable[[], Carrier]]
    ) -> None:
        self.access = access
        self.options = options
        self.carriers = carriers

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
    """Return the parts of `host:port` or `[v6]:port`, port 1 to 65535. Raises LinkError."""
    host, _, port = address.rpartition(":")
    if not host or not PORT.fullmatch(port) or not 0 < int(port) <= PORT_MAX:
        raise LinkError(
            Cause.ADDRESS,
            address[:ADDRESS_SHOWN],
            f"{address[:ADDRESS_SHOWN]!r} is not of the form host:port, with a port from 1 to "
            f"{PORT_MAX}",
        )
    return host.strip("[]"), int(port)


def dialled(opening: Opening, address: str, within_s: float, wire: str) -> Link:
    """Open a link over `wire`; try again until the time is over. Raises LinkError."""
    host_and_port(address)
    by_s = time.monotonic() + within_s
    while True:
        carrier: Carrier | None = None
        try:
            carrier = opening.carriers[wire]()
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
    link: Link | None = None
    try:
        link = Link(
            agreed, carrier, opening.options, lambda link, by: _again(opening, link, address, by)
        )
        wire = carrier.wire(
            stream, answer.wire, link.traffic.session, link.traffic, agreed.checksum
        )
    except WireFault:
        stream.close()
        if link is not None:
            link.progress.stop()
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
    except ValueError as error:  # of names that no host has, such as a..b
        raise WireFault(Cause.ADDRESS, f"{address!r} names no host: {error}") from error
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
