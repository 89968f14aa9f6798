"""Agents' gossip over real UDP sockets, with real lease and roster files: no scheduler, no log, no
bus.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from libs.common.messages import Roster
from services.node_agent.peers.kept_roster import FILE, RosterFile
from services.node_agent.peers.peer_budget import HEARD_PER_NODE
from services.node_agent.peers.peer_messages import NONCE_BYTES, PeerAsk
from services.node_agent.peers.peers import Kept
from services.node_agent.peers.peers_udp import UdpChannel, open_channel, place
from tests.integration.peers_world import HOST, LEASE_MS, fleet

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
