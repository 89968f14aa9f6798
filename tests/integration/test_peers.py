"""Agents' gossip over real UDP sockets, with real lease and roster files: no scheduler, no log, no bus."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import nkeys
import pytest

from libs.common.clock import SystemClock
from libs.common.messages import Roster, RosterEntry
from libs.common.model import NodeId
from services.node_agent import gossip as g
from services.node_agent.kept_roster import FILE, RosterFile
from services.node_agent.peer_messages import NONCE_BYTES, PeerAsk, Signer
from services.node_agent.peers import HEARD_PER_NODE, Kept, Peers
from services.node_agent.peers_udp import UdpChannel, open_channel
from services.node_agent.supervision.lease import Lease

LEASE_MS = 1_600
MS = 1_000_000
WAIT_S = 10.0
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
        self.peers = Peers(self.node_id, self.channel, clock, self.lease, keeper, self.signer, lambda: os.urandom(NONCE_BYTES))
        self.life = asyncio.create_task(self.peers.run(1))

    async def end(self) -> None:
        self.life.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.life
        self.channel.close()
        await asyncio.sleep(0.01)  # the loop closes it

    def leased(self) -> None:
        """By a scheduler, for a heartbeat of this moment."""
        now_ns = SystemClock().boot_ns()
        g.granted(self.peers.gossip, now_ns)
        self.lease.extend(now_ns + LEASE_MS * MS)

    def lives(self) -> bool:
        return self.lease.deadline_ns() > SystemClock().boot_ns()


@contextlib.asynccontextmanager
async def fleet(folder: Path, size: int) -> AsyncIterator[list[Node]]:
    nodes = [Node(number, folder) for number in range(size)]
    for node in nodes:
        await node.begin()
    entries = tuple(RosterEntry(node.node_id, node.address, node.signer.public, 1) for node in nodes)
    for node in nodes:
        await node.peers.take(Roster("home", 1, "first", LEASE_MS, entries))
        node.leased()
    try:
        yield nodes
    finally:
        for node in nodes:
            await node.end()
            node.lease.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not holds():
            await asyncio.sleep(0.01)


async def test_nodes_that_no_scheduler_answers_keep_their_leases_for_as_long_as_it_lasts(tmp_path: Path) -> None:
    async with fleet(tmp_path, 4) as nodes:
        for _ in range(30):
            await asyncio.sleep(LEASE_MS / 10_000)
            assert all(node.lives() for node in nodes)


async def test_a_node_whose_peers_are_renewed_or_gone_loses_its_lease(tmp_path: Path) -> None:
    async with fleet(tmp_path, 4) as nodes:
        await nodes[3].end()
        alone = nodes[0]
        while alone.lives():
            for node in nodes[1:3]:
                node.leased()
            await asyncio.sleep(0.05)
        assert alone.peers.gossip.asked_ns > 0
        await nodes[3].begin()


async def test_an_agent_that_begins_again_has_its_roster_and_its_port(tmp_path: Path) -> None:
    async with fleet(tmp_path, 3) as nodes:
        await nodes[2].end()  # for good: both others are needed
        await nodes[0].end()
        before = nodes[0].address
        await nodes[0].begin()
        await until(lambda: nodes[0].peers.size == 3)
        assert nodes[0].address == before
        await asyncio.sleep(2 * LEASE_MS / 1_000)
        assert nodes[0].lives() and nodes[1].lives()
        await nodes[2].begin()


async def test_junk_is_counted_and_a_flood_is_not_read(tmp_path: Path) -> None:
    async with fleet(tmp_path, 2) as nodes:
        heard, dropped = nodes[0].peers, nodes[0].peers.dropped
        flood = 3 * HEARD_PER_NODE * (heard.size + 1)
        for _ in range(flood):
            nodes[1].channel.send(nodes[0].address, b"junk")
        await until(lambda: heard.dropped >= dropped + flood // 2)
        good = nodes[1].signer.datagram(PeerAsk("home", nodes[1].node_id, 1, bytes(NONCE_BYTES)))
        heard.read = flood
        heard._hear(nodes[1].address, good)
        assert heard.dropped > dropped


async def test_a_roster_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    keeper = RosterFile(tmp_path)
    assert await keeper.load() == Kept()
    (tmp_path / FILE).write_bytes(b"torn")
    assert await keeper.load() == Kept()
    await keeper.store(Kept("127.0.0.1:9", Roster("home")))
    assert await RosterFile(tmp_path).load() == Kept("127.0.0.1:9", Roster("home"))


async def test_a_port_that_is_taken_is_given_up_and_a_foreign_address_is_refused(tmp_path: Path) -> None:
    first = await open_channel(HOST, "")
    second = await open_channel(HOST, first.address)
    assert isinstance(second, UdpChannel) and second.address != first.address
    first.close()
    second.close()
    with pytest.raises(OSError):
        await open_channel("192.0.2.1", "")
