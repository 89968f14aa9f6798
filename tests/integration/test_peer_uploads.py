"""Uploads come from nodes that have them: whole, verified, and seldom through a gateway."""

import asyncio
import time
from hashlib import sha256
from io import BytesIO
from pathlib import Path

import pytest

from libs.common.errors import Refused
from libs.common.life import job_life
from libs.common.messages.file_messages import PART_BYTES
from libs.common.model import NodeId
from libs.common.state.cluster import Node
from services.api_gateway.agents import upload_sources
from services.node_agent.links import grants
from services.node_agent.uploads import fetching
from services.node_agent.uploads.cache import UploadCache
from tests.integration.peer_uploads_world import BOUND, DATA, SHA, Nodes, nodes_at, start_order


def sessions(nodes: Nodes) -> int:
    """Return how many sessions the nodes have served."""
    counts = (node.links.choices.counts() for node in nodes.by_name.values())
    return sum(
        count for each in counts for (side, _), (count, _) in each.items() if side == "serve"
    )


async def test_a_gang_reads_its_upload_through_a_gateway_twice_whatever_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "LOOK_S", 0.05)
    names = [f"n{number}" for number in range(8)]
    async with nodes_at(tmp_path, *names, bytes_per_s=8 * len(DATA)) as nodes:
        nodes.place("j1", *names)
        await asyncio.gather(*(nodes[name].start() for name in names))
        assert all(nodes[name].has() for name in names)
        assert nodes.store.firsts == upload_sources.SEEDS == 2
        assert sessions(nodes) >= len(names) - 2


async def test_elements_of_an_array_on_one_node_share_one_fetch_and_one_file(
    tmp_path: Path,
) -> None:
    async with nodes_at(tmp_path, "a") as nodes:
        for job in ("j1", "j2", "j3"):
            nodes.place(job, "a")
        await asyncio.gather(*(nodes["a"].start(job) for job in ("j1", "j2", "j3")))
        assert nodes.store.firsts == 1
        names = [path.name for path in nodes["a"].cache.folder.iterdir()]
        assert names == [f"red.{SHA}"]
        assert nodes["a"].cache.folder.stat().st_mode & 0o777 == 0o700


async def test_a_small_upload_comes_from_a_gateway_at_once(tmp_path: Path) -> None:
    small = b"small" * 100
    name = sha256(small).hexdigest()
    async with nodes_at(tmp_path, "a", "b", "c", "d") as nodes:
        await nodes.store.put("red", name, BytesIO(small))  # type: ignore[arg-type]
        nodes.place("j1", "a", "b", "c", "d", upload=name)
        for each in ("a", "b", "c", "d"):
            assert await nodes[each].archive(upload=name) == small
            assert not nodes[each].has(upload=name)
        assert nodes.store.firsts == 4 and sessions(nodes) == 0


async def test_a_fetch_goes_on_at_another_node_where_one_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nodes_at(tmp_path, "a", "b", "c", bytes_per_s=8 * PART_BYTES) as nodes:
        nodes.place("j1", "a", "b", "c")
        for name in ("a", "b"):
            with nodes[name].cache.staged(BOUND) as stage:
                stage.write(DATA)
                assert nodes[name].cache.adopt("red", SHA, stage)
            nodes.member("j1", NodeId(name)).state = job_life.STARTED
        fetching_c = asyncio.ensure_future(nodes["c"].archive())
        stage_of_c = nodes["c"].cache.folder

        def size() -> int:
            return sum(path.stat().st_size for path in stage_of_c.glob("stage-*"))

        async with asyncio.timeout(10):
            while not size():
                await asyncio.sleep(0.01)
            source = "a" if nodes["a"].links.sessions else "b"
            other = {"a": "b", "b": "a"}[source]
            await nodes[source].links.close()
            assert await fetching_c == DATA
        assert nodes.store.firsts == 0
        async with asyncio.timeout(10):
            while nodes[other].links.sessions:
                await asyncio.sleep(0.01)
        # The other node gave the rest only: what came before stayed.
        (sent,) = (size for _, size in nodes[other].links.choices.counts().values())
        assert 0 < sent < len(DATA)


async def test_a_gateway_gives_it_when_no_node_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "WAIT_S", 0.5)
    async with nodes_at(tmp_path, "a") as nodes:
        others = [f"silent{number}" for number in range(4)]
        for name in others:  # nodes that start the job too, and never do
            nodes.cluster.nodes[NodeId(name)] = Node(NodeId(name), "healthy", link_address="h:1")
        nodes.place("j1", "a", *others)
        began_s = time.monotonic()
        assert await nodes["a"].archive() == DATA
        assert time.monotonic() - began_s < 10 and nodes.store.firsts == 1


async def test_a_node_without_the_upload_is_avoided(tmp_path: Path) -> None:
    async with nodes_at(tmp_path, "a", "b") as nodes:
        nodes.place("j1", "a", "b")
        nodes.member("j1", NodeId("b")).state = job_life.STARTED  # its agent was restarted
        assert await nodes["a"].archive() == DATA
        assert nodes["a"].uploads.avoided.nodes(SHA, time.monotonic()) == ("b",)
        assert nodes.store.firsts == 1


async def test_a_node_serves_two_readers_of_an_upload_at_once(tmp_path: Path) -> None:
    names = [f"n{number}" for number in range(4)]
    async with nodes_at(tmp_path, *names, bytes_per_s=4 * len(DATA)) as nodes:
        nodes.place("j1", *names)
        nodes.place("j0", "n0")
        await nodes["n0"].start("j0")
        nodes.member("j1", NodeId("n0")).state = job_life.STARTED
        most = 0

        async def look() -> None:
            nonlocal most
            while True:
                most = max(most, nodes["n0"].links.sessions)
                await asyncio.sleep(0.005)

        looking = asyncio.ensure_future(look())
        assert set(await asyncio.gather(*(nodes[name].archive() for name in names[1:]))) == {DATA}
        looking.cancel()
        assert 1 <= most <= grants.READERS_MAX == 2


async def test_an_upload_that_no_gateway_has_is_refused(tmp_path: Path) -> None:
    async with nodes_at(tmp_path, "a") as nodes:
        nodes.place("j1", "a", upload="ab" * 32)
        with pytest.raises(Refused, match="is not stored any more"):
            await nodes["a"].archive(upload="ab" * 32)
        with pytest.raises(Refused, match="is not on node a"):
            await nodes["a"].archive(job="j2")


async def test_a_wrong_archive_of_a_gateway_is_refused_and_not_kept(tmp_path: Path) -> None:
    async with nodes_at(tmp_path, "a") as nodes:
        nodes.store.archives["red", SHA] = DATA[:-1] + b"x"
        nodes.place("j1", "a")
        with pytest.raises(Refused, match="another SHA-256"):
            await nodes["a"].archive()
        assert list(nodes["a"].cache.folder.iterdir()) == []


async def test_jobs_that_hold_an_archive_at_once_are_bounded(tmp_path: Path) -> None:
    count = fetching.STARTS_MAX + 3
    go, open_now, most = asyncio.Event(), 0, 0
    async with nodes_at(tmp_path, "a") as nodes:

        async def start(number: int) -> None:
            nonlocal open_now, most
            data = DATA + bytes([number])
            sha = sha256(data).hexdigest()
            nodes.store.archives["red", sha] = data
            nodes.place(f"j{number}", "a", upload=sha)
            order = start_order(f"j{number}", upload=sha)
            async with nodes["a"].uploads.opened(order, lambda: True) as pieces:
                open_now += 1
                most = max(most, open_now)
                if open_now == fetching.STARTS_MAX:
                    asyncio.get_running_loop().call_later(0.2, go.set)
                await go.wait()
                assert b"".join([piece async for piece in pieces]) == data
                open_now -= 1

        await asyncio.gather(*(start(number) for number in range(count)))
    assert most == fetching.STARTS_MAX


async def test_an_archive_over_the_bound_of_a_node_is_refused(tmp_path: Path) -> None:
    async with nodes_at(tmp_path, "a") as nodes:
        nodes.place("j1", "a")
        nodes["a"].uploads.bytes_max = len(DATA) - 1
        with pytest.raises(Refused, match="MUSTER_UPLOAD_BYTES"):
            await nodes["a"].archive()


def test_the_archives_that_were_used_last_stay(tmp_path: Path) -> None:
    cache = UploadCache(tmp_path / "uploads", 30)
    names = {}
    for letter in b"abc":
        data = bytes([letter]) * 10
        names[letter] = sha256(data).hexdigest()
        with cache.staged(BOUND) as stage:
            stage.write(data)
            assert cache.adopt("red", names[letter], stage)
    held = cache.opened("red", names[ord("b")])
    assert held is not None and cache.opened("red", names[ord("a")]) is not None
    with cache.staged(BOUND) as stage:
        stage.write(b"d" * 20)
        assert not cache.adopt("red", names[ord("a")], stage)
        assert cache.adopt("blue", stage.sha256, stage)
    assert cache.opened("red", names[ord("b")]) is None and held.read() == b"b" * 10
    assert cache.opened("red", names[ord("a")]) is not None
    assert cache.opened("blue", names[ord("a")]) is None
    with cache.staged(BOUND) as stage:  # larger than the cache
        stage.write(b"e" * 40)
        assert cache.adopt("red", stage.sha256, stage)
        assert cache.opened("red", stage.sha256) is not None
    assert len(list(cache.folder.iterdir())) == 1


def test_a_new_agent_begins_with_no_archive(tmp_path: Path) -> None:
    first = UploadCache(tmp_path / "uploads", 100)
    with first.staged(BOUND) as stage:
        stage.write(b"x")
        first.adopt("red", stage.sha256, stage)
    second = UploadCache(tmp_path / "uploads", 100)
    assert second.opened("red", sha256(b"x").hexdigest()) is None
    with second.staged(BOUND):
        assert len(list(second.folder.iterdir())) == 1
    assert list(second.folder.iterdir()) == []
