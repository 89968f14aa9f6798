"""A hostile serving node fails only its own session, and is named. The next one gives the rest."""

import asyncio
import threading
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from libs.common.life import kept_life
from libs.common.messages.file_messages import FilePart
from libs.common.messages.link_messages import LinkAsk
from libs.common.model import NodeId
from services.node_agent.links.kept_weights import KeptWeights
from tests.integration.peer_weights_world import FILES, KeepingNode, Nodes, nodes_at

pytestmark = pytest.mark.attack


class Hostile(KeptWeights):
    """Serves the second file in a wrong way."""

    def __init__(self, node: KeepingNode, way: str) -> None:
        super().__init__(node.key.node_id, node.weights, lambda: node.keeps)
        self.way, self.freed = way, threading.Event()

    def part(self, ask: LinkAsk, path: bytes, offset: int) -> FilePart:
        found = super().part(ask, path, offset)
        if path != b"shards/one.bin":
            return found
        match self.way:
            case "corrupts":
                return replace(found, data=found.data[:-1] + b"?")
            case "truncates":
                return replace(found, data=found.data[:-1])
            case "claims less":
                return replace(found, size_bytes=1_000, data=found.data[:1_000])
            case "claims more":
                return replace(found, size_bytes=found.size_bytes + (1 << 40))
            case "is a folder":
                return FilePart(kind="folder")
            case "replaces":
                return replace(found, identity=str(offset))
        self.freed.wait(20)
        return found


WAYS = {
    "corrupts": "the SHA-256",
    "truncates": "changed while it was read",
    "claims less": "the SHA-256",
    "claims more": "at most",
    "is a folder": "(folder)",
    "replaces": "changed while it was read",
    "stalls": "has not answered for 1 s",
}


async def fetch_from(nodes: Nodes, way: str, second: bool) -> str:
    """Let node `c` fetch from the hostile node `a`, and then from `b` if that has the weights."""
    nodes["a"].fill()
    hostile = Hostile(nodes["a"], way)
    nodes["a"].links.weights = hostile
    if second:
        nodes.record(NodeId("b"), kept_life.FILLING)
    fetching = asyncio.ensure_future(nodes["c"].fetch())
    while not nodes["c"].told:
        await asyncio.sleep(0.005)
    if second:
        nodes["b"].fill()
    seen = await asyncio.wait_for(fetching, 20)
    hostile.freed.set()
    assert seen.state == (kept_life.READY if second else kept_life.FAILED)
    return seen.detail


@pytest.mark.parametrize("way", WAYS)
async def test_another_node_gives_what_a_hostile_one_does_not(tmp_path: Path, way: str) -> None:
    async with nodes_at(tmp_path, "a", "b", "c", answer_s=1) as nodes:
        assert await fetch_from(nodes, way, second=True) == "from node a over tcp, node b over tcp"
        assert nodes["c"].files() == FILES


@pytest.mark.parametrize("way", WAYS)
async def test_a_hostile_node_is_named_and_leaves_nothing(tmp_path: Path, way: str) -> None:
    async with nodes_at(tmp_path, "a", "c", answer_s=1) as nodes:
        detail = await fetch_from(nodes, way, second=False)
        assert "node a" in detail and WAYS[way] in detail
        assert nodes["c"].names() == []


@pytest.mark.parametrize("name", ["../out", "/etc/out", "a//b", "a/./b", "..", "", "new\nline"])
async def test_recorded_names_that_lead_outside_are_refused(tmp_path: Path, name: str) -> None:
    """The first node that reads the files records their names, so it may have invented them."""
    async with nodes_at(tmp_path, "a", "b") as nodes:
        nodes["a"].fill()
        nodes.kept.files = {**nodes.kept.files, name: "ab" * 32}
        seen = await nodes["b"].fetch()
        assert seen.state == kept_life.FAILED and "recorded file name" in seen.detail
        assert nodes["b"].names() == [] and not (tmp_path / "out").exists()


async def test_a_node_that_is_not_the_offered_one_gives_nothing(tmp_path: Path) -> None:
    """A node with the address of another one cannot use the token that the other one signed."""
    async with nodes_at(tmp_path, "a", "b", "c", answer_s=1) as nodes:
        nodes["a"].fill()
        nodes["c"].want(nodes["a"].keeps.wanted["chat/host"])
        nodes["a"].links.address = nodes["c"].links.address
        seen = await nodes["b"].fetch()
        assert seen.state == kept_life.FAILED and "no link to node a" in seen.detail


async def test_a_node_that_claims_to_be_ready_and_is_not_costs_one_question(tmp_path: Path) -> None:
    async with nodes_at(tmp_path, "a", "b", "c") as nodes:
        nodes.record(NodeId("a"), kept_life.READY, 1 << 20)
        nodes["b"].fill()
        for name in "ac":  # node a is the nearest
            nodes.cluster.nodes[NodeId(name)].measured_rack = "m1"
        seen = await nodes["c"].fetch()
        assert (seen.state, seen.detail) == (kept_life.READY, "from node b over tcp")
        assert nodes["c"].peers.avoided.nodes(7, time.monotonic()) == (NodeId("a"),)
