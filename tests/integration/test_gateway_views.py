"""Nodes, devices, the log, past states and the gateway's own life, over real HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from libs.common import facts as f
from libs.common import subjects
from libs.common.errors import Fenced
from libs.common.folds import job_fold
from libs.common.life import node_life
from libs.common.messages import Vitals
from libs.common.model import GpuId, NodeId
from libs.common.transport.log_memory import MemoryStream
from libs.common.transport.snapshot_store import MemorySnapshots
from services.api_gateway.access.auth import hash_key
from services.api_gateway.http import events
from services.api_gateway.views import snapshots
from tests.integration.gateway_world import World, gateway_world


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with gateway_world(tmp_path) as made:
        await made.writers.begin_term()
        await made.writers.register("n1")
        await made.settle()
        yield made


async def test_a_node_shows_its_devices_and_their_holders(world: World) -> None:
    job_id = await world.run_to("running")
    listed = (await world.ask("GET", "/v1/nodes"))["nodes"]
    assert [
        (node["id"], node["state"], node["gpus_total"], node["gpus_free"]) for node in listed
    ] == [("n1", "healthy", 2, 1)]
    full = await world.ask("GET", "/v1/nodes/n1")
    assert full["node"] == listed[0]
    assert [gpu["state"] for gpu in full["gpus"]] == ["IN_USE", "AVAILABLE"]
    assert full["gpus"][0]["holders"] == [{"job_id": job_id, "attempt": 1, "share": 100}]
    await world.ask("GET", "/v1/nodes/n9", 404)


async def test_a_device_shows_one_state_for_its_use_and_health(world: World) -> None:
    await world.run_to("placed")
    await world.writers.on(
        "n1",
        f.GpuFaulted(
            node_id=NodeId("n1"), uuid=GpuId("n1-g1"), health="offline", reason="quarantined"
        ),
    )
    await world.settle()
    assert [gpu["state"] for gpu in (await world.ask("GET", "/v1/gpus"))["gpus"]] == [
        "ALLOCATED",
        "ERROR",
    ]
    assert [gpu["uuid"] for gpu in (await world.ask("GET", "/v1/gpus?state=error"))["gpus"]] == [
        "n1-g1"
    ]


@pytest.mark.parametrize(
    ("path", "known"),
    [
        (
            "/v1/gpus?state=BOGUS",
            "AVAILABLE, ALLOCATED, IN_USE, DEGRADED, RESETTING, OFFLINE, MAINTENANCE, ERROR",
        ),
        ("/v1/nodes?state=bogus", "healthy, degraded, unreachable, removed"),
        ("/v1/jobs?state=queued,bogus", "queued, "),
        ("/v1/jobs/{job}/wait?state=bogus", "queued, "),
        ("/v1/jobs/{job}/output?stream=bogus", "stdout, stderr"),
    ],
)
async def test_unknown_value_of_a_filter_is_refused_with_the_accepted_ones(
    world: World, path: str, known: str
) -> None:
    job = await world.run_to("running")
    problem = await world.ask("GET", path.format(job=job), 422)
    assert (
        "bogus' is not known: give one of" in problem["detail"].lower()
        and known in problem["detail"]
    )


@pytest.mark.parametrize(
    ("state", "there"), [("in_use", 1), ("IN_USE", 1), ("offline", 0), ("", 2)]
)
async def test_devices_are_listed_by_their_state(world: World, state: str, there: int) -> None:
    await world.run_to("running")
    assert len((await world.ask("GET", f"/v1/gpus?state={state}"))["gpus"]) == there


async def test_the_cluster_is_counted(world: World) -> None:
    await world.run_to("completed")
    await world.run_to("running")
    shown = await world.ask("GET", "/v1/cluster")
    assert {state: count for state, count in shown["jobs"].items() if count} == {
        "completed": 1,
        "running": 1,
    }
    assert (shown["nodes"], shown["gpus"], shown["gpu_share_held"]) == (
        {"healthy": 1},
        {"IN_USE": 1, "AVAILABLE": 1},
        100,
    )
    assert (shown["epoch"], shown["leader"], shown["timing"]["lease_ms"]) == (1, "s1", 13_000)


async def test_events_are_in_order_and_filtered(world: World) -> None:
    job_id = await world.run_to("completed")
    other = await world.run_to("queued")
    found = (await world.ask("GET", "/v1/events"))["events"]
    assert [event["seq"] for event in found] == sorted(event["seq"] for event in found)
    for query, kinds in {
        f"job={other}": ["job.submitted", "job.admitted", "job.queued"],
        "node=n1": ["node.registered", "job.placed", "job.started", "job.finished", "job.released"],
        "kind=job.closed,node.": ["node.registered", "job.closed"],
        "last=1": ["job.queued"],
        "until=1h": [],
        f"job={job_id}&kind=job.st": ["job.started"],
    }.items():
        assert [
            event["kind"] for event in (await world.ask("GET", f"/v1/events?{query}"))["events"]
        ] == kinds, query
    await world.ask("GET", "/v1/events?kind=jib", 422)


async def test_the_last_facts_are_counted_as_they_are_shown(world: World) -> None:
    """However many access records and facts of others came since."""
    await world.run_to("completed")
    for _ in range(events.LAST_SLICE + 5):
        fact = f.AccessRecorded(entries=b"", count=0)
        await world.writers.write(subjects.gateway("b"), fact)
    await world.settle()
    shown = (await world.ask("GET", "/v1/events?last=3"))["events"]
    assert [event["kind"] for event in shown] == ["job.finished", "job.released", "job.closed"]
    everything = await world.ask("GET", "/v1/events?limit=1000")
    assert await world.ask("GET", "/v1/events?last=1000&limit=1000") == everything


async def test_pages_of_events_join(world: World) -> None:
    await world.run_to("completed")
    whole = (await world.ask("GET", "/v1/events"))["events"]
    seen, after, more = [], 0, True
    while more:
        page = await world.ask("GET", f"/v1/events?limit=2&after={after}")
        seen += page["events"]
        after, more = page["next"], page["more"]
    assert seen == whole


async def test_followed_events_come_as_they_are_recorded(world: World) -> None:
    end = (await world.log.bounds())[1]
    async with world.session.get(f"{world.url}/v1/events?follow=1&after={end}") as response:
        job_id = (await world.submit())["id"]
        event = json.loads(await response.content.readline())
        assert (event["kind"], event["fact"]["job_id"], event["writer"]) == (
            "job.submitted",
            job_id,
            subjects.gateway("a"),
        )


async def test_a_past_state_is_what_the_log_says_up_to_then(world: World) -> None:
    job_id = await world.run_to("queued")
    at = world.gateway.cluster.seq
    await world.writers.place(job_id, "n1")
    await world.settle()
    past = await world.ask("GET", f"/v1/state?at={at}")
    assert (past["seq"], past["jobs"][0]["state"], past["gpus"][0]["state"]) == (
        at,
        "queued",
        "AVAILABLE",
    )
    now = await world.ask("GET", f"/v1/state?at={at + 1}")
    assert (now["jobs"][0], now["gpus"][0]["state"]) == (
        await world.ask("GET", f"/v1/jobs/{job_id}"),
        "ALLOCATED",
    )
    assert (await world.ask("GET", "/v1/state?at=0"))["jobs"] == []
    await world.ask("GET", f"/v1/state?at={at + 2}", 422)


async def test_health_and_metrics_need_no_key(world: World) -> None:
    await world.submit()
    async with aiohttp.ClientSession() as stranger:
        for path in ("/livez", "/readyz", "/metrics", "/docs"):
            async with stranger.get(world.url + path) as response:
                assert response.status == 200, path
        async with stranger.get(world.url + "/metrics") as response:
            assert (
                'muster_gateway_requests_total{method="POST",route="/v1/jobs",status="201"} 1.0'
                in await response.text()
            )


async def test_a_gateway_that_hears_nothing_of_the_log_is_not_ready(world: World) -> None:
    world.gateway.lag = 1_000_000
    checks = (await world.ask("GET", "/readyz", 503))["checks"]
    assert [check["check"] for check in checks if not check["ok"]] == ["lag"]


async def test_every_route_is_in_the_documentation(world: World) -> None:
    paths = (await world.ask("GET", "/openapi.json"))["paths"]
    assert {"/v1/jobs", "/v1/jobs/{ref}/attach", "/v1/events", "/v1/watch"} <= set(paths)


async def test_a_key_is_withdrawn_without_a_restart(world: World, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(hash_key("another") + "\n")
    world.gateway.keys.refresh()
    await world.ask("GET", "/v1/jobs", 401)
    await world.ask("GET", "/v1/jobs", headers={"authorization": "Bearer another"})


async def test_a_malformed_key_file_keeps_the_previous_keys(world: World, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("not a hash\n")
    world.gateway._refresh_keys()
    await world.ask("GET", "/v1/jobs")


async def test_a_job_that_left_the_fold_leaves_the_views_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_fold, "ENDED_JOBS_KEPT", 2)
    ids = [await world.run_to("completed", name="same") for _ in range(4)]
    assert [job["id"] for job in (await world.ask("GET", "/v1/jobs?all=1"))["jobs"]] == ids[2:]
    await world.ask("GET", f"/v1/jobs/{ids[0]}", 404)
    assert (await world.ask("GET", "/v1/jobs/same"))["id"] == ids[3]
    assert sorted(world.gateway.history.seqs) == sorted(ids[2:])
    assert (await world.ask("GET", "/v1/cluster"))["jobs"]["completed"] == 2


async def test_a_gateway_starts_from_its_snapshot_and_the_tail(tmp_path: Path) -> None:
    stream, store = MemoryStream(), MemorySnapshots()
    async with gateway_world(tmp_path, stream, store) as first:
        await first.writers.begin_term()
        await first.writers.register("n1")
        job_id = await first.run_to("queued")
        await first.gateway.snapshots.save(
            snapshots.encode(first.gateway.cluster, first.gateway.history)
        )
        await first.writers.place(job_id, "n1")
        await first.settle()
        whole = (
            await first.ask("GET", "/v1/jobs?all=1"),
            await first.ask("GET", f"/v1/jobs/{job_id}/history"),
        )
    async with gateway_world(tmp_path, stream, store) as second:
        assert second.gateway.snapshots.stored_seq == second.gateway.cluster.seq - 1
        assert (
            await second.ask("GET", "/v1/jobs?all=1"),
            await second.ask("GET", f"/v1/jobs/{job_id}/history"),
        ) == whole
        assert (await second.submit())["state"] == "pending"


async def test_snapshots_are_made_by_themselves_and_leave_no_older_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "SNAPSHOT_EVERY", 2)
    store = MemorySnapshots()
    async with gateway_world(tmp_path, store=store) as world:
        for _ in range(6):
            await world.submit()
            await asyncio.sleep(0.01)
        assert sorted(store.objects) == ["cluster", f"history.{world.gateway.snapshots.stored_seq}"]
        assert world.gateway.snapshots.stored_seq >= 4


async def test_a_log_that_ends_before_the_snapshot_stops_the_gateway(tmp_path: Path) -> None:
    store = MemorySnapshots()
    async with gateway_world(tmp_path, store=store) as world:
        await world.submit()
        await world.gateway.snapshots.save(
            snapshots.encode(world.gateway.cluster, world.gateway.history)
        )
    with pytest.raises(AssertionError, match="lost or restored"):
        async with gateway_world(tmp_path, MemoryStream(), store):
            pass


async def test_a_gateway_stands_down_when_another_writes_as_its_instance(tmp_path: Path) -> None:
    stream = MemoryStream()
    async with gateway_world(tmp_path, stream) as first, gateway_world(tmp_path, stream) as second:
        await second.submit()
        with pytest.raises(Fenced):
            await first.running


async def test_two_gateways_of_their_own_names_see_each_others_jobs(tmp_path: Path) -> None:
    stream = MemoryStream()
    async with (
        gateway_world(tmp_path, stream) as first,
        gateway_world(tmp_path, stream, instance="b") as second,
    ):
        job = await first.submit()
        await second.settle()
        assert await second.ask("GET", f"/v1/jobs/{job['id']}") == job


async def test_a_node_that_the_scheduler_does_not_hear_can_be_declared_dead(world: World) -> None:
    await world.run_to("running")
    pulse = world.gateway.pulse
    pulse.vitals = Vitals(epoch=1, heard_ms_ago={}, unheard=(NodeId("n1"),))
    await world.ask("POST", "/v1/nodes/n1/dead", 409)  # the scheduler's answer is too old
    pulse.at_ns = pulse.clock.wall_ns()
    for shown in (
        (await world.ask("GET", "/v1/nodes/n1"))["node"],
        (await world.ask("GET", "/v1/nodes"))["nodes"][0],
        await world.ask("POST", "/v1/nodes/n1/dead", 202),
    ):
        assert shown["state"] == "healthy"
    assert (await world.ask("GET", "/v1/nodes/n1"))["node"]["reason"] == node_life.UNHEARD
    await world.ask("POST", "/v1/nodes/n1/dead", 202)
    said = (await world.ask("GET", "/v1/events?kind=node.declared_dead"))["events"]
    assert len(said) == 2


async def test_only_a_lost_node_can_be_declared_dead(world: World) -> None:
    await world.run_to("running", on_control_loss="continue")
    problem = await world.ask("POST", "/v1/nodes/n1/dead", 409)
    assert "only a lost or silent node can be declared dead" in problem["detail"]
    await world.ask("POST", "/v1/nodes/n9/dead", 404)
    lost_seq = await world.writers.schedule(f.NodeLost(node_id=NodeId("n1"), incarnation=1))
    (job,) = (await world.ask("GET", f"/v1/jobs?min_seq={lost_seq}"))["jobs"]
    assert (job["state"], job["on_control_loss"]) == ("running", "continue")
    assert job["waits_for"].startswith(
        "its processes to end; its node n1 is silent and it may still run there"
    )
    for _ in range(2):
        assert (await world.ask("POST", "/v1/nodes/n1/dead", 202, json={"user": "ada"}))[
            "state"
        ] == "unreachable"
    said = [
        row["fact"]
        for row in (await world.ask("GET", "/v1/events?kind=node.declared_dead"))["events"]
    ]
    assert [
        (fact["node_id"], fact["incarnation"], fact["lost"], fact["user"]) for fact in said
    ] == [("n1", 1, 1, "ada")]
