"""Schedulers that take over while jobs are submitted all the time: each death makes one term, and
nothing is placed twice.

The nodes are facts: no agent runs, so placements end nothing and free nothing.
"""

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bench.decision import machine
from libs.common import facts as f
from libs.common import fold, reading, subjects
from libs.common.model import TenantId
from libs.common.process.clock import SystemClock
from libs.common.state.cluster import Cluster
from libs.common.transport.writer import Writer
from tests.integration.leading_world import Leaders, leaders

pytestmark = pytest.mark.drill

NODES = 96
DEATHS = 3
LAG_COMMITS = 3_000
BURST_S = 4.0
PLACED_S = 30.0


@asynccontextmanager
async def cluster_of_two(tmp_path: Path) -> AsyncIterator[tuple[Leaders, str]]:
    """Run two schedulers and a quota over a log with nodes. Yield them and the leader."""
    async with leaders(tmp_path, "scheduler") as world:
        world.start("a")
        world.start("b")
        leader = await world.leader()
        await world.follows("b" if leader == "a" else "a")
        quota = Leaders(tmp_path, world.server, "quota", world.bus.client)
        quota.start("a")
        world.living["quota"] = quota.living["a"]
        for number in range(NODES):
            node = machine(number)
            writer = Writer(world.log, SystemClock(), subjects.node(node.node_id), lambda: 0)
            writer.epoch = 1
            await writer.commit([node])
        yield world, leader


async def load(world: Leaders) -> None:
    while True:
        await world.submit(1)
        await asyncio.sleep(0.02)


async def folded(world: Leaders) -> tuple[Cluster, Counter[tuple[str, int]]]:
    """Fold the whole log; return the state and how often each attempt was placed."""
    cluster, placed = Cluster(), Counter[tuple[str, int]]()
    last = (await world.log.bounds())[1]
    async for batch in world.log.read(0):
        for entry in batch:
            commit = reading.read(cluster.writers, entry.subject, entry.data)
            fold.apply_entry(cluster, entry.seq, entry.subject, commit)
            placed.update(
                (fact.job_id, fact.attempt)
                for fact in commit.facts
                if isinstance(fact, f.JobPlaced)
            )
        if cluster.seq >= last:
            return cluster, placed
    raise AssertionError


async def all_placed_once(world: Leaders) -> None:
    """Wait until every submitted job is placed, and check that each is placed once, on a GPU of its
    own, and that no fact of the log was ignored.
    """
    async with asyncio.timeout(PLACED_S):
        while len((found := await folded(world))[1]) < world.number:
            await asyncio.sleep(0.2)
    cluster, placed = found
    assert set(placed.values()) == {1} and cluster.ignored == 0
    holders = [view.holds for view in cluster.gpus.values() if view.holds]
    assert len(holders) == world.number and all(len(holds) == 1 for holds in holders)


async def test_leaders_killed_and_stopped_under_load_place_every_job_once(tmp_path: Path) -> None:
    async with cluster_of_two(tmp_path) as (world, leader):
        loading = asyncio.create_task(load(world))
        for death in range(DEATHS):
            other = "b" if leader == "a" else "a"
            if death % 2:
                world.send(leader, signal.SIGSTOP)
            else:
                world.kill(leader)
            assert await world.leader(besides=[leader]) == other
            if death % 2:
                world.send(leader, signal.SIGCONT)
                await asyncio.to_thread(world.living.pop(leader).wait, 20)
            world.said(leader).write_text("")
            world.start(leader)
            await world.follows(leader)
            leader = other
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
        assert len(await world.terms()) == 1 + DEATHS
        await all_placed_once(world)


async def test_a_follower_that_lags_leads_only_when_it_has_read_the_log(tmp_path: Path) -> None:
    async with cluster_of_two(tmp_path) as (world, leader):
        follower = "b" if leader == "a" else "a"
        world.send(follower, signal.SIGSTOP)
        await world.submit(50)
        for number in range(LAG_COMMITS):
            await world.writer.commit(
                [f.TenantSet(tenant=TenantId(f"t{number % 50}"), weight=1 + number)]
            )
        world.kill(leader)
        world.send(follower, signal.SIGCONT)
        assert await world.leader(besides=[leader]) == follower
        assert len(await world.terms()) == 2
        await world.submit(50)
        await all_placed_once(world)


async def test_renewals_and_signs_of_life_are_not_delayed_by_load(tmp_path: Path) -> None:
    async with cluster_of_two(tmp_path) as (world, leader):
        writers = [
            Writer(world.log, SystemClock(), subjects.gateway(f"load-{number}"), lambda: 0)
            for number in range(16)
        ]
        end = asyncio.get_running_loop().time() + BURST_S

        async def burst(writer: Writer) -> None:
            number = 0
            while asyncio.get_running_loop().time() < end:
                number += 1
                await writer.commit(
                    [
                        f.TenantSet(tenant=TenantId(f"t{each}"), weight=1 + number)
                        for each in range(20)
                    ]
                )

        await asyncio.gather(*(burst(writer) for writer in writers))
        assert len(await world.terms()) == 1 and await world.leader() == leader
        assert "was not renewed" not in world.said(leader).read_text()
