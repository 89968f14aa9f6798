"""Reads with `at` answer what the same route answered at that time, byte by byte, at any gateway:
from the log, from a snapshot, and from a state that was kept.
"""

from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from libs.common import facts as f
from libs.common import fold, reading
from libs.common.process.clock import SystemClock
from libs.common.state.cluster import Cluster
from libs.common.transport import snapshot
from libs.common.transport.bus_memory import MemoryBus
from libs.common.transport.log_memory import MemoryLog, MemoryStream
from libs.common.transport.snapshot_store import (
    BASE_OBJECT,
    CLUSTER_OBJECT,
    MemorySnapshots,
)
from services.api_gateway.gateway import Gateway
from services.api_gateway.moments.moments import Moments
from services.api_gateway.problems import Problem
from services.api_gateway.views import snapshots
from services.api_gateway.views.entries import Entries
from services.api_gateway.views.history import History
from services.api_gateway.views.index import JobIndex
from tests.integration.gateway_world import World, gateway_world
from tests.unit.test_snapshot import history

LISTS = (
    "/v1/jobs?all=1",
    "/v1/jobs?all=1&elements=1&limit=2",
    "/v1/jobs",
    "/v1/nodes",
    "/v1/gpus",
    "/v1/fleet",
    "/v1/fleet?limit=1",
    "/v1/gpus?state=in_use",
    "/v1/deployments",
    "/v1/deployments/chat",
    "/v1/queues",
    "/v1/tenants",
    "/v1/tenants/physics",
    "/v1/reservations",
    "/v1/cluster",
    "/v1/nodes/n1",
    "/v1/gpus/n1-g0",
)
# Status and body by path.
Answers = dict[str, tuple[int, bytes]]


async def text_of(world: World, path: str) -> tuple[int, bytes]:
    async with world.session.get(world.url + path) as response:
        return response.status, await response.read()


async def answers(world: World, paths: tuple[str, ...], at: int = 0) -> Answers:
    found = {}
    for path in paths:
        asked = f"{path}{'&' if '?' in path else '?'}at={at}" if at else path
        found[path] = await text_of(world, asked)
    return found


async def recorded(world: World) -> dict[int, tuple[tuple[str, ...], Answers]]:
    """Run a cluster through its life, and record what all routes answer after each step."""
    found: dict[int, tuple[tuple[str, ...], Answers]] = {}
    jobs: list[str] = []

    async def look() -> None:
        await world.settle()
        paths = LISTS + tuple(f"/v1/jobs/{job_id}" for job_id in jobs)
        found[world.gateway.cluster.seq] = (paths, await answers(world, paths))

    await world.writers.begin_term()
    await look()
    await world.ask("PUT", "/v1/tenants/physics", 201, json={"max_gpus": 4})
    await world.writers.register("n1")
    await world.writers.register("n2", 4)
    await look()
    for state in ("queued", "running", "completed"):
        jobs.append(await world.run_to(state, node="n2" if state == "running" else "n1"))
        await look()
    await world.ask("PUT", "/v1/queues/night", 201, json={"policy": "fifo"})
    await world.ask("POST", "/v1/deployments", 201, json={"name": "chat", "command": ["serve"]})
    await look()
    await world.ask("PUT", "/v1/nodes/n1/service", json={"service": "draining"})
    await world.ask(
        "PUT",
        "/v1/reservations/nightly",
        201,
        json={"duration": "1h", "nodes": ["n2"], "tenants": ["physics"]},
    )
    await look()
    await world.ask("DELETE", "/v1/deployments/chat", 202)
    await world.ask("POST", f"/v1/jobs/{jobs[0]}/cancel", 202)
    await look()
    await world.submit()
    await world.settle()
    return found


async def check(world: World, told: dict[int, tuple[tuple[str, ...], Answers]]) -> None:
    seqs = list(told)
    Random(3).shuffle(seqs)
    for seq in seqs * 2:
        paths, then = told[seq]
        assert await answers(world, paths, at=seq) == then, seq


async def test_a_past_read_answers_as_the_route_answered_then(tmp_path: Path) -> None:
    stream, store = MemoryStream(), MemorySnapshots()
    async with gateway_world(tmp_path, stream, store) as world:
        told = await recorded(world)
        assert len(told) >= 8
        await check(world, told)
        middle = list(told)[len(told) // 2]
        cluster = (await world.gateway.moments.at(str(middle), "t")).cluster
        pair = snapshots.encode(cluster, History())
        await store.put(CLUSTER_OBJECT, pair.cluster)
    # Another gateway has kept nothing yet, and begins from the snapshot where it can.
    async with gateway_world(tmp_path, stream, store, instance="b") as other:
        await check(other, told)
        assert other.gateway.moments.frozen.nearest(middle) == middle


async def test_a_time_means_the_last_commit_before_it(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        told = await recorded(world)
        shown = await world.ask("GET", "/v1/moments")
        assert (shown["first"]["seq"], shown["moment"]) == (1, None)
        assert shown["last"]["seq"] == world.gateway.cluster.seq
        for seq in list(told)[1:-1]:
            place = (await world.ask("GET", f"/v1/moments?at={seq}"))["moment"]
            assert place["seq"] == seq
            found = (await world.ask("GET", f"/v1/moments?at={place['at']}"))["moment"]
            listed = await world.ask("GET", f"/v1/tenants?at={place['at']}")
            assert listed["seq"] == found["seq"]
        future = (await world.ask("GET", "/v1/moments?at=2200-01-01T00:00:00Z"))["moment"]
        assert future["seq"] == world.gateway.cluster.seq


async def test_the_shown_time_of_a_commit_means_that_commit(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        await recorded(world)
        shown = await world.ask("GET", "/v1/moments")
        for place in (shown["first"], shown["last"]):
            found = (await world.ask("GET", f"/v1/moments?at={place['at']}"))["moment"]
            assert found["at"] == place["at"]
            assert found["seq"] >= place["seq"]


async def test_a_member_sees_of_the_past_what_it_may_see_of_the_present(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        await world.writers.begin_term()
        await world.writers.register("n1")
        await world.ask("PUT", "/v1/tenants/physics", 201)
        job_id = await world.run_to("running", name="secret")
        seq = world.gateway.cluster.seq
        await world.submit()
        async with world.as_("member", "ada", "physics") as ada:
            assert (await ada.ask("GET", f"/v1/jobs?at={seq}"))["jobs"] == []
            await ada.ask("GET", f"/v1/jobs/{job_id}?at={seq}", 404)
            assert (await ada.ask("GET", f"/v1/nodes?at={seq}"))["nodes"][0]["job_ids"] == []
            gpus = (await ada.ask("GET", f"/v1/gpus?at={seq}"))["gpus"]
            assert gpus[0]["holders"] == [{"job_id": "", "attempt": 0, "share": 100}]
            names = [
                each["name"] for each in (await ada.ask("GET", f"/v1/tenants?at={seq}"))["tenants"]
            ]
            assert names == ["physics"]
            assert (await ada.ask("GET", "/v1/moments"))["first"]["seq"] == 1


async def test_pages_of_a_past_list_belong_together(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        await world.writers.begin_term()
        ids = [(await world.submit())["id"] for _ in range(5)]
        seq = world.gateway.cluster.seq
        for job_id in ids:
            await world.ask("POST", f"/v1/jobs/{job_id}/cancel", 202)
            await world.submit()
        pages, after = [], 0
        while after is not None:
            page = await world.ask("GET", f"/v1/jobs?at={seq}&limit=2&after={after}")
            pages.append([job["id"] for job in page["jobs"]])
            assert page["seq"] == seq
            after = page["next"]
        assert pages == [ids[:2], ids[2:4], ids[4:]]


@pytest.mark.parametrize(
    ("at", "status", "text"),
    [
        ("yesterday", 422, "at: 'yesterday' is not a time"),
        ("-1", 422, "at:"),
        ("999999", 422, "is beyond the last commit"),
        ("9" * 40, 422, "is beyond the last commit"),
        ("1999-01-01T00:00:00Z", 410, "is before the oldest moment of this cluster, commit 1 ("),
        ("00", 410, "is before the oldest moment"),
    ],
)
async def test_a_moment_that_cannot_be_read_is_refused_with_the_reason(
    tmp_path: Path, at: str, status: int, text: str
) -> None:
    async with gateway_world(tmp_path) as world:
        await world.writers.begin_term()
        await world.writers.register("n1")  # whose clock does not count
        await world.submit()
        for path in ("/v1/jobs", "/v1/cluster", "/v1/moments"):
            problem = await world.ask("GET", f"{path}?at={at}", status)
            assert text in problem["detail"]


async def test_routes_without_past_moments_do_not_know_the_parameter(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        for path in ("/v1/keys", "/v1/usage", "/v1/memory", "/v1/whoami?x=1&"):
            if "?" not in path:
                await world.ask("GET", f"{path}?at=1", 422)


async def test_over_a_trimmed_log_the_oldest_moment_is_named(tmp_path: Path) -> None:
    stream, store = MemoryStream(), MemorySnapshots()
    async with gateway_world(tmp_path, stream, store) as world:
        told = await recorded(world)
    base = list(told)[3]
    cluster = folded(stream, base)
    await store.put(BASE_OBJECT, snapshot.encode(cluster))
    stream.purge({subject: mark.seq for subject, mark in cluster.writers.items()})
    async with gateway_world(tmp_path, stream, store) as world:
        shown = await world.ask("GET", "/v1/moments")
        assert shown["first"]["seq"] == base and shown["first"]["at"]
        problem = await world.ask("GET", f"/v1/jobs?at={base - 1}", 410)
        assert f"oldest moment of this cluster, commit {base} (" in problem["detail"]
        assert problem["oldest"] == shown["first"]
        await check(world, {seq: each for seq, each in told.items() if seq >= base})
        early = await world.ask("GET", "/v1/jobs?at=2001-01-01T00:00:00Z", 410)
        assert early["oldest"]["seq"] == base


def folded(stream: MemoryStream, upto: int) -> Cluster:
    """A fresh fold of the log."""
    cluster = Cluster()
    for entry in stream.entries[:upto]:
        commit = reading.read(cluster.writers, entry.subject, entry.data)
        fold.apply_entry(cluster, entry.seq, entry.subject, commit)
    return cluster


@pytest.mark.parametrize("seed", range(3))
async def test_every_moment_is_the_fresh_fold_of_the_log_up_to_it(seed: int) -> None:
    made, stream, chance = history(seed), MemoryStream(), Random(seed)
    for subject, commit in made.log:
        last = stream.last_by_subject.get(subject)
        stream.store(subject, f.encode(commit), last.seq if last else 0)
    store, log = MemorySnapshots(), MemoryLog(stream)
    moments = Moments(
        Entries(log, MemoryBus()), store, SystemClock(), bytes_max=1 << 20, wait_s=30.0
    )
    present = folded(stream, len(stream.entries))
    moments.places.present = present_of(moments, present)
    for _ in range(30):
        seq = chance.randrange(1, len(stream.entries) + 1)
        if chance.random() < 0.1:
            await store.put(CLUSTER_OBJECT, snapshot.encode(folded(stream, seq)))
        found = await moments.at(str(seq), chance.choice("ab"))
        fresh = folded(stream, seq)
        assert msgspec.msgpack.encode(found.cluster) == msgspec.msgpack.encode(fresh)
        index = JobIndex(fresh)
        assert (found.index.places, found.index.ids, found.index.counts) == (
            index.places,
            index.ids,
            index.counts,
        )


def present_of(moments: Moments, cluster: Cluster) -> Any:
    """The present state, as a gateway sets it."""
    from services.api_gateway.moments.moment import Moment
    from services.api_gateway.views.job_lookup import JobLookup

    index = JobIndex(cluster)
    lookup = JobLookup(cluster, index, History(), moments.entries, moments.entries.bus)
    return Moment(cluster, index=index, lookup=lookup, now_ns=lambda: 0)


async def test_a_moment_that_is_not_ready_in_time_goes_on_and_is_answered_later(
    tmp_path: Path,
) -> None:
    async with gateway_world(tmp_path) as world:
        await world.writers.begin_term()
        for _ in range(20):
            await world.submit()
        seq = world.gateway.cluster.seq
        world.gateway.moments.wait_s = 0.0
        problem = await world.ask("GET", f"/v1/jobs?at={seq - 1}", 503)
        assert "is not ready after 0 s" in problem["detail"]
        world.gateway.moments.wait_s = 30.0
        assert (await world.ask("GET", f"/v1/jobs?at={seq - 1}"))["seq"] == seq - 1


async def test_a_tenant_that_asks_for_many_moments_delays_no_other(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        await world.writers.begin_term()
        for _ in range(40):
            await world.submit()
        gateway: Gateway = world.gateway
        gateway.moments.wait_s = 0.0
        seq = gateway.cluster.seq
        for number in range(4):
            with pytest.raises(Problem, match="is not ready"):
                await gateway.moments.at(str(seq - number), "greedy")
        gateway.moments.wait_s = 30.0
        with pytest.raises(Problem, match="tenant greedy waits for 4 past moments"):
            await gateway.moments.at(str(seq - 9), "greedy")
        found = await gateway.moments.at("5", "quiet")
        assert found.seq == 5
        assert gateway.moments._folds, "moments of the other tenant still wait"
