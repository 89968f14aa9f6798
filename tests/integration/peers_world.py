"""Nodes that gossip over real UDP sockets of loopback, with real lease and roster files: no
scheduler, no log, no bus.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import nkeys

from libs.common.messages import Roster, RosterEntry
from libs.common.model import NodeId
from libs.common.process.clock import SystemClock
from services.node_agent.peers import gossip as g
from services.node_agent.peers.kept_roster import RosterFile
from services.node_agent.peers.peer_messages import NONCE_BYTES, Signer
from services.node_agent.peers.peers import Peers
from services.node_agent.peers.peers_udp import open_channel
from services.node_agent.supervisor.lease import Lease

LEASE_MS = 1_600
MS = 1_000_000
HOST = "127.0.0.1"


class Node:
    """A node of one machine: its directory, its socket, its key."""

    def __init__(self, number: int, folder: Path) -> None:
        self.node_id = NodeId(f"n{number}")
        self.folder = folder / self.node_id
        self.folder.mkdir()
        self.lease = Lease(str(self.folder / "lease"))
        self.signer = Signer(nkeys.encode_seed(bytes([number + 1]) * 32, nkeys.PREFIX_BYTE_USER))
        self.address = ""

    async def begin(self) -> None:
        """As an agent that begins with what is in its directory."""
        keeper = RosterFile(self.folder)
        self.channel = await open_channel(HOST, (await keeper.load()).address or self.address)
        self.address = self.channel.address
        clock = SystemClock()
        self.peers = Peers(
            node_id=self.node_id,
            channel=self.channel,
            clock=clock,
            lease=self.lease,
            keeper=keeper,
            signer=self.signer,
            make_nonce=lambda: os.urandom(NONCE_BYTES),
        )
        self.life = asyncio.create_task(self.peers.run(1))

    async def end(self) -> None:
        self.life.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.life
        self.channel.close()
        await asyncio.sleep(0.01)  # the loop closes it

    def leased(self, lease_ms: int = LEASE_MS) -> None:
        """By a scheduler, for a heartbeat of this moment."""
        now_ns = SystemClock().boot_ns()
        g.granted(self.peers.gossip, now_ns)
        self.lease.extend(now_ns + lease_ms * MS)

    def lives(self) -> bool:
        return self.lease.deadline_ns() > SystemClock().boot_ns()


@contextlib.asynccontextmanager
async def fleet(folder: Path, size: int, lease_ms: int = LEASE_MS) -> AsyncIterator[list[Node]]:
    nodes = [Node(number, folder) for number in range(size)]
    for node in nodes:
        await node.begin()
    entries = tuple(
        RosterEntry(node.node_id, node.address, node.signer.public, 1) for node in nodes
    )
    for node in nodes:
        await node.peers.take(
            Roster(cluster_id="home", seq=1, digest="first", lease_ms=lease_ms, nodes=entries)
        )
        node.leased(lease_ms)
    try:
        yield nodes
    finally:
        for node in nodes:
            await node.end()
            node.lease.close()
