"""The agent's prober: it listens for ordered peers, dials ordered peers, and measures.

Only a pair that the scheduler ordered can probe: the server closes a connection from an address
that no waiting order names, and both ends prove that they know the order's token. One probe runs at
a time, within an allowance of time. Tests: tests/integration/test_fabric_probes.py.
"""

import asyncio
import logging
import os
import socket
import time
from typing import Final, Protocol

import msgspec

from libs.common.facts import FabricProbed
from libs.common.messages import ProbeOrder
from libs.common.model import NodeId
from libs.common.process.clock import Clock
from libs.common.transport.writer import Writer
from services.node_agent.fabric.probes.allowance import Allowance
from services.node_agent.fabric.probes.exchange import Exchange, Received, Sizes
from services.node_agent.fabric.probes.frames import (
    DIAL,
    MAC_BYTES,
    NONCE_BYTES,
    SERVE,
    BrokenProtocol,
    is_proof,
    proof,
)

ENGINE: Final = "tcp"
# The two orders of a pair arrive at different times; a peer that is not there by then is absent.
MEET_S: Final = 0.8
DIAL_AGAIN_S: Final = 0.02
# Beyond the time of a pair, for what is on its way.
GRACE_S: Final = 0.3
# After a failed accept, for example without a free descriptor.
ACCEPT_AGAIN_S: Final = 0.5
BACKLOG: Final = 8
# Bounds of every order, also one of a lying sender.
PAIR_S_MAX: Final = 2.0
BULK_BYTES_MAX: Final = 64 << 20
BULK_COUNT_MAX: Final = 64
USED_UP: Final = "its time for probes is used up, a quarter of each minute comes back"

logger = logging.getLogger(__name__)


class Measured(msgspec.Struct, frozen=True):
    """The result of a probe: what this end received, or an error that names the peer.

    With `refused` the probe did not begin, for a reason of this end alone.
    """

    received: Received = Received(0, 0, 0, 0)
    error: str = ""
    refused: bool = False


class FabricProber(Protocol):
    """Measures links as ordered. Twin: the simulation's."""

    engine: str

    @property
    def address(self) -> str:
        """Return the address that peers dial ("ip:port"); empty if there is none."""
        ...

    async def probe(self, order: ProbeOrder) -> Measured:
        """Measure once. Returns within the pair's time and a margin, and never raises."""
        ...

    async def close(self) -> None: ...


class NoProber:
    """The prober of an agent that cannot listen."""

    engine = ""
    address = ""

    async def probe(self, order: ProbeOrder) -> Measured:
        return Measured(error="this agent takes no probes", refused=True)

    async def close(self) -> None:
        return


class Waiting:
    """An order whose peer has still to dial."""

    def __init__(self, order: ProbeOrder) -> None:
        self.order = order
        self.host = order.address.rpartition(":")[0]
        self.met: asyncio.Future[socket.socket] = asyncio.get_running_loop().create_future()
        self.greeting = False


class TcpProber:
    """The prober over TCP; made by `open_prober`."""

    engine = ENGINE

    def __init__(self, listener: socket.socket, clock: Clock) -> None:
        self.listener = listener
        self.clock = clock
        self.host, self.port = listener.getsockname()[:2]
        self.allowance = Allowance(clock.boot_ns())
        self.busy = False
        self.waiting: Waiting | None = None
        self.accepting = asyncio.get_running_loop().create_task(self._accept())

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    async def probe(self, order: ProbeOrder) -> Measured:
        """Measure the link to the order's peer."""
        begun_ns = self.clock.boot_ns()
        if self.busy:
            return Measured(error="another probe is under way here", refused=True)
        if not self.allowance.may_begin(begun_ns):
            return Measured(error=USED_UP, refused=True)
        self.busy = True
        try:
            return await self._measured(order)
        except TimeoutError:
            return Measured(error=f"{order.peer} stalled")
        except BrokenProtocol as error:
            return Measured(error=f"{order.peer} broke the protocol: {error}")
        except (OSError, ValueError) as error:
            return Measured(error=f"{order.peer} at {order.address}: {error}")
        finally:
            self.busy, self.waiting = False, None
            self.allowance.spend(self.clock.boot_ns() - begun_ns)

    async def _measured(self, order: ProbeOrder) -> Measured:
        if order.dials:
            return Measured(await asyncio.to_thread(dial, order, self.host))
        self.waiting = Waiting(order)
        async with asyncio.timeout(MEET_S):
            connection = await self.waiting.met
        return Measured(await asyncio.to_thread(measure, connection, order))

    async def _accept(self) -> None:
        """Take connections for ever; close those that no order expects."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, sender = await loop.sock_accept(self.listener)
            except OSError as error:
                logger.warning("no probe can be taken for a moment: %s", error)
                await asyncio.sleep(ACCEPT_AGAIN_S)
                continue
            waiting = self.waiting
            if waiting is None or waiting.greeting or sender[0] != waiting.host:
                connection.close()
                continue
            waiting.greeting = True
            try:
                known = await asyncio.to_thread(greets, connection, waiting.order.token)
            finally:
                waiting.greeting = False
            if known and not waiting.met.done():
                waiting.met.set_result(connection)
            else:
                connection.close()

    async def close(self) -> None:
        self.accepting.cancel()
        await asyncio.wait([self.accepting])
        self.listener.close()


async def report(prober: FabricProber, node_id: NodeId, order: ProbeOrder, writer: Writer) -> None:
    """Measure a link as ordered, and record what this node saw.

    If the report is lost, the round waits for its deadline.
    """
    found = await prober.probe(order)
    fact = FabricProbed(
        node_id=node_id,
        test=order.test,
        number=order.number,
        peer=order.peer,
        bandwidth=found.received.bandwidth,
        small_bandwidth=found.received.small_bandwidth,
        rtt_ns=found.received.rtt_ns,
        received=found.received.received,
        engine=prober.engine,
        error=found.error,
        refused=found.refused,
    )
    writer.put([fact])


def open_prober(host: str, clock: Clock) -> TcpProber:
    """Listen for peers on this host. Raises OSError if it is not an address of this machine."""
    listener = socket.create_server((host, 0), backlog=BACKLOG)
    listener.setblocking(False)
    return TcpProber(listener, clock)


def dial(order: ProbeOrder, host: str) -> Received:
    """Connect to the peer, prove the order, and measure. Runs in a thread.

    The peer closes connections until its own order has arrived, so dial again for a while.
    """
    until_s = time.monotonic() + MEET_S
    address, _, port = order.address.rpartition(":")
    while True:
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        try:
            connection = socket.create_connection((address, int(port)), left_s, (host, 0))
            if _is_met(connection, order.token, until_s):
                return measure(connection, order)
            connection.close()
        except ConnectionError:
            pass
        time.sleep(DIAL_AGAIN_S)


def _is_met(connection: socket.socket, token: bytes, until_s: float) -> bool:
    """Exchange proofs as the one that dialled. False if the peer closed the connection first.

    Raises BrokenProtocol if the peer does not know the token.
    """
    server_nonce = _exactly(connection, NONCE_BYTES, until_s)
    if len(server_nonce) < NONCE_BYTES:
        return False
    nonce = os.urandom(NONCE_BYTES)
    connection.sendall(nonce + proof(token, DIAL, server_nonce, nonce))
    answer = _exactly(connection, MAC_BYTES, until_s)
    if len(answer) < MAC_BYTES:
        return False
    if not is_proof(answer, token, SERVE, server_nonce, nonce):
        raise BrokenProtocol("it does not know the token of the order")
    return True


def greets(connection: socket.socket, token: bytes) -> bool:
    """Exchange proofs as the one that was dialled. Runs in a thread, for at most MEET_S."""
    until_s = time.monotonic() + MEET_S / 2
    connection.settimeout(MEET_S / 2)
    nonce = os.urandom(NONCE_BYTES)
    try:
        connection.sendall(nonce)
        given = _exactly(connection, NONCE_BYTES + MAC_BYTES, until_s)
        client_nonce, mac = given[:NONCE_BYTES], given[NONCE_BYTES:]
        if not is_proof(mac, token, DIAL, nonce, client_nonce):
            return False
        connection.sendall(proof(token, SERVE, nonce, client_nonce))
    except OSError:
        return False
    return True


def _exactly(connection: socket.socket, count: int, until_s: float) -> bytes:
    """Return this many bytes, or fewer if the connection ends. Raises TimeoutError."""
    found = b""
    while len(found) < count:
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        connection.settimeout(left_s)
        more = connection.recv(count - len(found))
        if not more:
            break
        found += more
    return found


def measure(connection: socket.socket, order: ProbeOrder) -> Received:
    """Measure over a connection whose ends have proved the order. Runs in a thread."""
    pair_s = min(PAIR_S_MAX, order.pair_ms / 1_000)
    sizes = Sizes(
        pair_s=pair_s,
        bulk_bytes=max(1, min(BULK_BYTES_MAX, order.bulk_bytes)),
        bulk_count=max(1, min(BULK_COUNT_MAX, order.bulk_count)),
    )
    with connection:
        exchange = Exchange(connection, sizes, time.monotonic() + pair_s + GRACE_S)
        return exchange.run(order.dials)
