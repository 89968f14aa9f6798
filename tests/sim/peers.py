"""The peer channel between simulated machines, with twins of the socket, the lease file and the
roster file.

A machine's address is its name. Datagrams are lost and delayed as bus messages are. A machine that
is cut off reaches no other machine.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Final

import nkeys

from libs.common.model import NodeId
from services.node_agent.peers.peer_messages import NONCE_BYTES, Signer
from services.node_agent.peers.peers import Kept, Peers
from tests.sim.bus import Network
from tests.sim.loop import Process
from tests.sim.machine import Machine
from tests.sim.supervisors import DISK_S

SUBJECT: Final = "peers"
SEED_BYTES: Final = 32


class SimChannel:
    """See `services.node_agent.peers.peers.Channel`."""

    def __init__(self, network: Network, process: Process, host: str) -> None:
        self.network = network
        self.process = process
        self.address = host
        self.hear: Callable[[str, bytes], None] = lambda sender, data: None

    def listen(self, hear: Callable[[str, bytes], None]) -> None:
        self.hear = hear
        self.network.channels[self.address] = self

    def narrow(self, senders: Sequence[str] | None) -> None:
        """Do nothing: no simulated machine sends from another machine's address."""

    def send(self, to: str, data: bytes) -> None:
        self.process.check()
        channel = self.network.channels.get(to)
        if channel is not None and self.network.passes(self.address, to, SUBJECT):
            channel.process.deliver(
                channel.hear, self.address, data, delay_s=self.network.delay_s(SUBJECT)
            )


class SimLease:
    """See `services.node_agent.peers.peers.LeaseFile`."""

    def __init__(self, machine: Machine, process: Process) -> None:
        self.machine = machine
        self.process = process

    def deadline_ns(self) -> int:
        return self.machine.disk.lease_ns

    def extend(self, deadline_ns: int) -> None:
        self.process.check()
        self.machine.weather.tell("lease_extended_by_peers", self.machine.node_id)
        self.machine.disk.lease_ns = max(self.machine.disk.lease_ns, deadline_ns)


class SimKeeper:
    """See `services.node_agent.peers.peers.Keeper`."""

    def __init__(self, machine: Machine, process: Process) -> None:
        self.machine = machine
        self.process = process

    async def load(self) -> Kept:
        self.process.check()
        return self.machine.disk.kept

    async def store(self, kept: Kept) -> None:
        await asyncio.sleep(DISK_S)
        self.process.check()
        self.machine.disk.kept = kept


def peers_of(machine: Machine, network: Network, process: Process) -> Peers:
    """Return the peers of one agent process. Its nonces and its key are the same in every run."""
    dice = random.Random(f"peers {process.name}")
    return Peers(
        node_id=NodeId(machine.node_id),
        channel=SimChannel(network, process, machine.node_id),
        clock=machine.clock,
        lease=SimLease(machine, process),
        keeper=SimKeeper(machine, process),
        signer=signer_of(machine.node_id),
        make_nonce=lambda: dice.randbytes(NONCE_BYTES),
    )


def signer_of(node_id: str) -> Signer:
    """Return the node's key."""
    return Signer(
        nkeys.encode_seed(
            random.Random(f"key {node_id}").randbytes(SEED_BYTES), nkeys.PREFIX_BYTE_USER
        )
    )
