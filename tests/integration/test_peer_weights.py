"""A node fetches kept weights from nodes that have them: whole, verified, and from several."""

import asyncio
import time
from pathlib import Path

import pytest

from libs.common.life import kept_life
from libs.common.model import NodeId
from libs.common.state.cluster import Node
from libs.common.subjects import ask_node
from services.api_gateway.agents import link_tokens
from services.node_agent.links import grants
from services.node_agent.resident import from_peers
from services.node_agent.resident.reports import seen_of
from services.node_agent.resident.trees import content_of
from tests.integration.peer_weights_world import FILES, Nodes, digests, nodes_at, order

SIZE = sum(map(len, FILES.values()))


async def test_a_node_fetches_all_files_and_names_their_source(tmp_path: Path) -> None:
    async with nodes_at(tmp_path, "a", "b") as nodes:
        nodes["a"].fill()
        seen = await nodes["b"].fetch()
        assert (seen.state, seen.detail) == (kept_life.READY, "from node a over tcp")
        assert seen.content == content_of(digests(FILES)) and seen.size_bytes == SIZE
        assert nodes["b"].files() == FILES
        (filling,) = nodes["b"].told
        assert (filling.state, filling.detail) == (
            kept_life.FILLING,
            "from node a, 0 of 3 files",
        )
        modes = [path.stat().st_mode & 0o777 for path in nodes["b"].folder().rglob("*.bin")]
        assert modes == [0o444, 0o444]


async def test_a_size_comes_from_the_log_before_bytes_are_granted(tmp_path: Path) -> None:
    async with nodes_at(tmp_path, "a", "b") as nodes:
        nodes["a"].fill()
        seen = await nodes["b"].fetch(granted=0)
        assert (seen.state, seen.size_bytes) == (kept_life.MEASURED, SIZE)
        assert seen.detail == "from node a; here: no folder"
        assert not nodes["b"].weights.root.exists()


async def test_an_entry_that_no_other_node_has_fails_with_its_own_reason(tmp_path: Path) -> None:
    async with nodes_at(tmp_path, "a", "b") as nodes:
        seen = await nodes["b"].fetch()
        assert seen.state == kept_life.FAILED
        assert seen.detail == "no folder; no other node has these weights ready"


async def test_an_entry_that_failed_is_measured_when_another_node_has_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(from_peers, "AGAIN_S", 0.1)
    async with nodes_at(tmp_path, "a", "b") as nodes:
        measuring = asyncio.ensure_future(nodes["b"].fetch(granted=0))
        while not nodes["b"].told:
            await asyncio.sleep(0.01)
        assert nodes["b"].told[0].state == kept_life.FAILED
        nodes["a"].fill()
        assert (await measuring).state == kept_life.MEASURED


async def test_an_entry_waits_for_another_one_that_is_being_filled(tmp_path: Path) -> None:
    async with nodes_at(tmp_path, "a", "b") as nodes:
        nodes.record(NodeId("a"), kept_life.FILLING)
        fetching = asyncio.ensure_future(nodes["b"].fetch())
        await asyncio.sleep(0.2)
        assert not fetching.done()
        nodes["a"].fill()
        assert (await fetching).state == kept_life.READY


async def test_a_failed_fetch_keeps_its_node_from_measuring_at_once(tmp_path: Path) -> None:
    async with nodes_at(tmp_path, "a", "b") as nodes:
        node = nodes["b"]
        await node.fetch()
        nodes["a"].fill()
        measuring = asyncio.ensure_future(node.fetch(granted=0))
        await asyncio.sleep(0.3)
        assert not measuring.done()
        node.keeps.wanted.clear()
        with pytest.raises(AssertionError):
            await measuring


async def test_more_bytes_than_were_granted_are_measured_again(tmp_path: Path) -> None:
    async with nodes_at(tmp_path, "a", "b") as nodes:
        nodes["a"].fill()
        seen = await nodes["b"].fetch(granted=SIZE - 1)
        assert (seen.state, seen.size_bytes) == (kept_life.MEASURED, SIZE)
        assert [each.state for each in nodes["b"].told] == [kept_life.FAILED]


@pytest.mark.parametrize("given", [False, True])
async def test_a_node_with_other_files_fetches_only_what_the_request_names(
    tmp_path: Path, given: bool
) -> None:
    """Hashes that another node recorded may be wrong, and this node's own files right."""
    async with nodes_at(tmp_path, "a", "b") as nodes:
        nodes["a"].fill()
        nodes.kept.files_given = given
        seen = await nodes["b"].fetch(differs=True)
        assert seen.state == (kept_life.READY if given else kept_life.FAILED)
        assert given or "--sha256sums" in seen.detail


async def test_each_node_that_is_ready_becomes_a_source(tmp_path: Path) -> None:
    names = [f"n{number}" for number in range(7)]
    async with nodes_at(tmp_path, *names, bytes_per_s=4 * SIZE) as nodes:
        nodes["n0"].fill()
        found = await asyncio.gather(*(nodes[name].fetch() for name in names[1:]))
        assert [seen.state for seen in found] == [kept_life.READY] * 6
        assert all(nodes[name].files() == FILES for name in names)
        direct = sum(seen.detail == "from node n0 over tcp" for seen in found)
        assert direct < 6


async def test_a_node_serves_a_bounded_number_of_readers(tmp_path: Path) -> None:
    names = [f"n{number}" for number in range(5)]
    async with nodes_at(tmp_path, *names) as nodes:
        nodes["n0"].fill()
        asks = [await asked(nodes, name) for name in names[1:]]
        assert [bool(each.token) for each in asks] == [True, True, False, False]
        assert [each.waits for each in asks] == [False, False, True, True]
        assert grants.READERS_MAX == 2


async def asked(nodes: Nodes, name: str) -> from_peers.WeightsOffer:
    nodes.record(NodeId(name), kept_life.FILLING)
    return await nodes.answers.offer(from_peers.WeightsAsk("chat", 7), NodeId(name))


async def test_a_source_that_answers_no_gateway_costs_one_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_tokens, "ALL_S", 0.2)
    async with nodes_at(tmp_path, "b") as nodes:
        silent = NodeId("a")
        nodes.cluster.nodes[silent] = Node(silent, "healthy", link_address="127.0.0.1:1")
        nodes.record(silent, kept_life.READY, SIZE)
        await nodes.bus.subscribe(ask_node(silent, "link"), never, concurrent=True)
        seen = await nodes["b"].fetch()
        assert seen.state == kept_life.FAILED
        assert silent in nodes["b"].peers.avoided.nodes(7, time.monotonic())


async def never(subject: str, data: bytes) -> bytes:
    await asyncio.sleep(60)
    return b""


async def test_the_files_that_are_complete_stay_when_the_source_goes_away(
    tmp_path: Path,
) -> None:
    """The first source loses a file; the second one gives only what is missing."""
    async with nodes_at(tmp_path, "a", "b", "c") as nodes:
        nodes["a"].fill()
        (nodes["a"].folder() / "shards/two.bin").unlink()
        nodes.record(NodeId("b"), kept_life.FILLING)
        fetching = asyncio.ensure_future(nodes["c"].fetch())
        while not any("a" in each.detail for each in nodes["c"].told):
            await asyncio.sleep(0.005)
        nodes["b"].fill()
        seen = await fetching
        assert (seen.state, seen.detail) == (
            kept_life.READY,
            "from node a over tcp, node b over tcp",
        )
        assert nodes["c"].told[-1].detail == "from node b, 2 of 3 files"
        assert nodes["c"].files() == FILES


async def test_a_fetch_ends_when_its_entry_is_not_wanted_any_more(tmp_path: Path) -> None:
    async with nodes_at(tmp_path, "a", "b", bytes_per_s=SIZE // 8) as nodes:
        nodes["a"].fill()
        node = nodes["b"]
        wanted = node.want(order(granted=SIZE))
        nodes.record(NodeId("b"), kept_life.FILLING)
        failed = seen_of(wanted, kept_life.FAILED, detail="no folder")
        fetching = asyncio.ensure_future(node.peers.instead(wanted, failed, node.fills))
        while not node.told:
            await asyncio.sleep(0.01)
        node.keeps.wanted.clear()
        assert await fetching is None
        assert node.names() == []
