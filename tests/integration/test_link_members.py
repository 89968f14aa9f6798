"""Links to a node that registered a moment ago: agents wait for its entry in the roster."""

import asyncio
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from libs.common import subjects
from libs.common.messages import Lease, Roster
from libs.common.messages.copy_messages import COPIED, COPYING, CopyStart, CopyState
from libs.common.messages.file_messages import BUSY
from libs.common.messages.link_messages import LinkAsk, LinkGranted
from libs.common.model import NodeId
from libs.common.process.clock import SystemClock
from libs.common.transport.bus_memory import MemoryBus
from services.node_agent.links.members import Members
from tests.integration.copies_world import fetching_at
from tests.integration.links_world import DIALLER, ROSTER, SERVER, WITHIN_S, part, serving_at
from tests.integration.peers_world import fleet

LATER_S = 1.0

T = TypeVar("T")


def without(node_id: NodeId) -> Roster:
    """The roster before this node registered."""
    nodes = tuple(entry for entry in ROSTER.nodes if entry.node_id != node_id)
    return msgspec.structs.replace(ROSTER, nodes=nodes)


async def asked(
    bus: MemoryBus, node_id: NodeId, verb: str, ask: LinkAsk | CopyStart, kind: type[T]
) -> T:
    reply = await bus.request(
        subjects.ask_node(node_id, verb), msgspec.msgpack.encode(ask), WITHIN_S
    )
    return msgspec.msgpack.decode(reply, type=kind)


async def test_a_token_waits_for_the_dialler_s_entry_in_the_roster(tmp_path: Path) -> None:
    bus, loop = MemoryBus(), asyncio.get_running_loop()
    with serving_at(tmp_path / "root") as serving:
        (serving.root / "model").write_text("x")
        serving.roster = without(DIALLER.node_id)
        await serving.links.listen(bus)
        loop.call_later(LATER_S, setattr, serving, "roster", ROSTER)
        granted = await asked(bus, SERVER.node_id, "link", serving.ask("model"), LinkGranted)
        assert serving.asked.is_set() and granted.token, granted.text
        link = await asyncio.to_thread(serving.dial, granted.token)
        assert (await asyncio.to_thread(part, link, "model")).data == b"x"
        await asyncio.to_thread(link.close)


async def test_a_copy_waits_for_the_serving_node_s_entry_in_the_roster(tmp_path: Path) -> None:
    bus, loop = MemoryBus(), asyncio.get_running_loop()
    with fetching_at(tmp_path) as fetching:
        (fetching.serving.root / "x").write_text("hello")
        fetching.roster = without(SERVER.node_id)
        await fetching.copies.listen(bus)
        loop.call_later(LATER_S, setattr, fetching, "roster", ROSTER)
        start = fetching.request("x")
        begun = await asked(bus, DIALLER.node_id, "copy", start, CopyState)
        assert fetching.asked.is_set() and begun.state in (COPYING, COPIED), begun.text
        done = await asyncio.to_thread(fetching.ended, start)
        assert (done.state, done.text) == (COPIED, "")


async def test_a_node_that_stays_unknown_is_a_fault_that_says_to_try_again(tmp_path: Path) -> None:
    bus = MemoryBus()
    with fetching_at(tmp_path) as fetching:
        serving = fetching.serving
        (serving.root / "x").touch()
        start = fetching.request("x")
        serving.roster, fetching.roster = without(DIALLER.node_id), without(SERVER.node_id)
        serving.links.members.known_s = fetching.copies.members.known_s = 0.1
        await serving.links.listen(bus)
        await fetching.copies.listen(bus)
        granted = await asked(bus, SERVER.node_id, "link", serving.ask("x"), LinkGranted)
        assert (granted.fault, granted.token) == (BUSY, b"")
        assert "node server has no key of node 'dialler'" in granted.text
        begun = await asked(bus, DIALLER.node_id, "copy", start, CopyState)
        assert (begun.fault, begun.node_id) == (BUSY, "") and "try again" in begun.text
        assert "node dialler has no key of node 'server'" in begun.text
        assert fetching.names() == []


@pytest.mark.parametrize("entry", [{"key": ""}, {"removed": True}])
def test_a_node_without_a_key_or_that_was_removed_has_no_links(entry: dict[str, object]) -> None:
    nodes = tuple(msgspec.structs.replace(each, **entry) for each in ROSTER.nodes)
    roster = msgspec.structs.replace(ROSTER, nodes=nodes)
    assert Members(SERVER.node_id, lambda: ROSTER).has(DIALLER.node_id)
    assert not Members(SERVER.node_id, lambda: roster).has(DIALLER.node_id)


async def test_a_wait_lets_the_next_lease_fetch_the_roster(tmp_path: Path) -> None:
    bus, now_ns = MemoryBus(), SystemClock().boot_ns
    async with fleet(tmp_path, 2) as (first, late):
        peers = first.peers
        whole = msgspec.structs.replace(peers.gossip.roster, seq=3, digest="third")

        async def roster(subject: str, data: bytes) -> bytes:
            return msgspec.msgpack.encode(whole)

        await bus.subscribe(subjects.roster(first.node_id), roster)
        peers.gossip.roster = msgspec.structs.replace(
            whole, seq=2, digest="second", nodes=whole.nodes[:1]
        )
        lease = Lease(1, "ok", 0, 0, 0, "", 3, roster="third")
        assert peers.hears(lease, now_ns())
        assert not peers.hears(lease, now_ns())  # a roster was fetched a moment ago
        members = Members(first.node_id, lambda: peers.gossip.roster, peers.fetch_soon)
        waiting = asyncio.create_task(members.wait_for(late.node_id))
        await asyncio.sleep(0)
        assert peers.hears(lease, now_ns())
        await peers.fetch(bus)
        await waiting
        assert members.has(late.node_id)
