"""Agents' gossip over real UDP sockets, with real lease and roster files: no scheduler, no log, no
bus.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from libs.common import subjects
from libs.common.errors import Unavailable
from libs.common.facts import ClusterConfigured
from libs.common.messages import Heartbeat, Roster
from libs.common.process.clock import SystemClock
from libs.common.state.cluster import Cluster
from libs.common.timing import Timing
from libs.common.transport.bus_memory import MemoryBus
from libs.common.transport.log_memory import MemoryLog, MemoryStream
from libs.common.transport.writer import Writer
from services.node_agent.core import state as s
from services.node_agent.heartbeats import Heartbeats
from services.node_agent.peers.kept_roster import FILE, RosterFile
from services.node_agent.peers.peer_budget import HEARD_PER_NODE
from services.node_agent.peers.peer_messages import NONCE_BYTES, PeerAsk
from services.node_agent.peers.peers import Kept, Peers
from services.node_agent.peers.peers_udp import UdpChannel, open_channel, place
from services.scheduler.leases.lease_answers import lease_answer
from services.scheduler.leases.roster import may_hold_lease, roster
from tests.given import registered
from tests.integration.peers_world import HOST, LEASE_MS, fleet
from tests.restored import RESTORE, TERM, told

WAIT_S = 10.0


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not holds():
            await asyncio.sleep(0.01)


async def test_nodes_that_no_scheduler_answers_keep_their_leases_for_as_long_as_it_lasts(
    tmp_path: Path,
) -> None:
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


async def test_datagram_of_a_stranger_is_dropped_at_no_cost_for_peers(tmp_path: Path) -> None:
    async with fleet(tmp_path, 2) as nodes:
        heard, dropped = nodes[0].peers, nodes[0].peers.dropped
        for number in range(3 * HEARD_PER_NODE):
            heard._hear(nodes[1].address, b"junk" * (number + 20))
        assert heard.dropped == dropped + 3 * HEARD_PER_NODE
        good = nodes[1].signer.datagram(PeerAsk("home", nodes[1].node_id, 1, bytes(NONCE_BYTES)))
        heard._hear(nodes[1].address, good)
        assert heard.dropped == dropped + 3 * HEARD_PER_NODE


async def test_a_roster_of_before_a_restore_is_replaced_and_gets_no_lease_until_then(
    tmp_path: Path,
) -> None:
    """The kept roster has a later sequence, and a node that joined after the backup."""
    async with fleet(tmp_path, 3) as nodes:
        agent = nodes[0]
        former = msgspec.structs.replace(agent.peers.gossip.roster, seq=1_000)
        await agent.peers.take(former)
        await agent.end()
        await agent.begin()
        await until(lambda: agent.peers.roster_seq == 1_000)
        cluster = restored_cluster(*(node.address for node in nodes[:2]))
        bus, beats = MemoryBus(), []

        async def heartbeat(subject: str, data: bytes) -> bytes:
            beat = msgspec.msgpack.decode(data, type=Heartbeat)
            beats.append(beat)
            lease_ms = LEASE_MS if may_hold_lease(cluster, cluster.nodes[beat.node_id], beat) else 0
            digest = roster(cluster).digest
            return msgspec.msgpack.encode(
                lease_answer(cluster, 1, beat, "ok", lease_ms=lease_ms, roster_digest=digest)
            )

        async def whole(subject: str, data: bytes) -> bytes:
            return msgspec.msgpack.encode(roster(cluster))

        await bus.subscribe(subjects.heartbeat(agent.node_id), heartbeat)
        await bus.subscribe(subjects.roster(agent.node_id), whole)
        leases: list[int] = []
        beating = asyncio.create_task(heartbeats(bus, agent.peers, leases).run(lambda: None))
        await until(lambda: LEASE_MS in leases)
        beating.cancel()
        kept = (await RosterFile(agent.folder).load()).roster
    assert (kept.life, kept.seq, len(kept.nodes)) == ("1-r", cluster.seq, 2)
    assert (beats[0].roster_life, beats[0].roster_seq, leases[0]) == ("", 1_000, 0)
    assert (beats[-1].roster_life, beats[-1].roster_seq) == ("1-r", cluster.seq)


async def test_an_agent_that_heard_of_a_restore_and_starts_again_extends_no_lease(
    tmp_path: Path,
) -> None:
    """The answer makes it start again, and no scheduler answers its next process."""
    async with fleet(tmp_path, 3) as nodes:
        agent, bus = nodes[0], MemoryBus()
        cluster = restored_cluster(*(node.address for node in nodes[:2]))

        async def heartbeat(subject: str, data: bytes) -> bytes:
            beat = msgspec.msgpack.decode(data, type=Heartbeat)
            return msgspec.msgpack.encode(
                lease_answer(cluster, 1, beat, "ok", lease_ms=0, roster_digest="x")
            )

        await bus.subscribe(subjects.heartbeat(agent.node_id), heartbeat)
        beating = heartbeats(bus, agent.peers, [])
        beating.life = (0, "")
        with pytest.raises(Unavailable, match="was restored from a backup"):
            await beating.run(lambda: None)
        for node in nodes:
            await node.end()
            await node.begin()
        await until(lambda: all(node.peers.size == 3 for node in nodes))
        await asyncio.sleep(2 * LEASE_MS / 1_000)
        assert [node.lives() for node in nodes] == [False, True, True]


def restored_cluster(*addresses: str) -> Cluster:
    """Return a restored cluster whose backup has the first nodes of the fleet."""
    before = [
        registered(f"n{number}", peer_address=address) for number, address in enumerate(addresses)
    ]
    configured = ClusterConfigured(cluster_id="home", timing=Timing(lease_ms=LEASE_MS))
    return told(TERM, configured, *before, RESTORE, TERM)


def heartbeats(bus: MemoryBus, peers: Peers, leases: list[int]) -> Heartbeats:
    """Return the heartbeats of a registered agent, which note the length of each lease."""
    clock, running = SystemClock(), asyncio.get_running_loop()
    found = Heartbeats(
        peers.gossip.node_id,
        interval_ms=100,
        bus=bus,
        clock=clock,
        writer=Writer(MemoryLog(MemoryStream()), clock, "facts.node.n0", seen=lambda: 0),
        peers=peers,
        state=lambda: s.begin(peers.gossip.node_id, 1, ()),
        tell=lambda seen: leases.append(seen.lease.lease_ms),  # type: ignore[union-attr]
        spawn=lambda work: running.create_task(work),
    )
    registration = running.create_future()
    registration.set_result(1)
    found.registered_as(registration)
    return found


async def test_a_roster_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    keeper = RosterFile(tmp_path)
    assert await keeper.load() == Kept()
    (tmp_path / FILE).write_bytes(b"torn")
    assert await keeper.load() == Kept()
    await keeper.store(Kept("127.0.0.1:9", Roster("home")))
    assert await RosterFile(tmp_path).load() == Kept("127.0.0.1:9", Roster("home"))


async def test_a_port_that_is_taken_is_given_up_and_a_foreign_address_is_refused(
    tmp_path: Path,
) -> None:
    first = await open_channel(HOST, "")
    second = await open_channel(HOST, first.address)
    assert isinstance(second, UdpChannel) and second.address != first.address
    first.close()
    second.close()
    with pytest.raises(OSError):
        await open_channel("192.0.2.1", "")


def test_a_place_is_a_host_and_a_port_in_ascii_digits() -> None:
    assert place("10.0.0.1:80") == ("10.0.0.1", 80)
    for wrong in ("10.0.0.1:0", "10.0.0.1:65536", "10.0.0.1:²", "h:" + "9" * 5_000, ":80", "h"):
        assert place(wrong) is None
