"""Scrapes of a real gateway: the cluster's state, the control plane, and what only operators see.
Every metric that it exports stands in the catalogue.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from libs.common import subjects
from libs.common.messages.member_messages import MemberSign, encode
from libs.common.transport.log_survey import LogSurvey, ServerSeen
from services.api_gateway.control_plane.expiry import CertificateSeen
from services.api_gateway.control_plane.plane import ControlPlane
from tests.integration.gateway_world import World, gateway_world
from tests.metrics_catalogue import FILE, exported

WAIT_S = 10.0
GIB = 1 << 30
SURVEYED = LogSurvey(
    last=9,
    commits=9,
    bytes=GIB,
    bytes_max=4 * GIB,
    first_ns=1,
    servers=(
        ServerSeen("nats-1", leads=True, current=True, online=True, lag=0),
        ServerSeen("nats-2", leads=False, current=False, online=False, lag=7),
    ),
)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with gateway_world(tmp_path) as made:
        await made.writers.begin_term()
        await made.writers.register("n1")
        await made.settle()
        yield made


@contextlib.asynccontextmanager
async def watched(world: World) -> AsyncIterator[ControlPlane]:
    """The gateway watches a control plane, whose log the test describes."""

    async def survey() -> LogSurvey:
        return SURVEYED

    gateway = world.gateway
    plane = ControlPlane(
        gateway.bus,
        clock=gateway.clock,
        settings=gateway.settings,
        survey=survey,
        read_seq=lambda: gateway.cluster.seq,
    )
    running = asyncio.create_task(plane.run())
    async with asyncio.timeout(WAIT_S):
        while plane.log is None:
            await asyncio.sleep(0.01)
    gateway.pulse.plane = plane
    try:
        yield plane
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def scraped(world: World) -> str:
    """Return a fresh answer: an older one serves for a second."""
    for collector in list(world.gateway.telemetry.registry._collector_to_names):
        if hasattr(collector, "fresh_until_ns"):
            collector.fresh_until_ns = 0
    async with world.session.get(world.url + "/metrics") as answer:
        assert answer.status == 200
        return await answer.text()


async def values(world: World) -> dict[str, float]:
    lines = (await scraped(world)).splitlines()
    found = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {series: float(value) for series, value in found}


async def sign(world: World, service: str, instance: str, leads: bool, epoch: int = 1) -> None:
    told = encode(MemberSign(leads, epoch, world.gateway.cluster.seq))
    await world.bus.publish(subjects.member(service, instance), told)


async def test_everything_that_a_gateway_exports_is_in_the_catalogue(world: World) -> None:
    await world.run_to("completed")
    async with watched(world) as plane:
        plane.certificates = [CertificateSeen("authority", "CN=a", 5)]
        await sign(world, "quota", "a", leads=True)
        rows = exported(await scraped(world), "gateway")
    known = {row["name"]: row for row in json.loads(FILE.read_text())}
    names = [row["name"] for row in rows if not row["name"].endswith("_created")]
    assert [name for name in names if name not in known] == []
    assert len(names) > 40
    assert [
        row["name"]
        for row in rows
        if row["name"] in known and (row["help"], row["kind"]) != _said(known[row["name"]])
    ] == []


def _said(row: dict[str, str]) -> tuple[str, str]:
    return row["help"], row["kind"]


async def test_jobs_are_counted_with_their_wait_and_their_end(world: World) -> None:
    await world.run_to("completed")
    await world.run_to("running")
    found = await values(world)
    assert found["muster_jobs_submitted_total"] == 2
    assert found['muster_jobs_ended_total{outcome="completed"}'] == 1
    assert found['muster_jobs_ended_total{outcome="failed"}'] == 0
    assert found["muster_job_wait_seconds_count"] == 2
    assert found['muster_jobs{state="running"}'] == 1
    assert found['muster_gpus{model="H100",state="allocated"}'] == 1


async def test_service_without_a_leader_is_counted_as_none(world: World) -> None:
    async with watched(world):
        await sign(world, "scheduler", "a", leads=True)
        await sign(world, "scheduler", "b", leads=False)
        found = await values(world)
        assert found['muster_service_leaders{service="scheduler"}'] == 1
        assert found['muster_service_leaders{service="audit"}'] == 0
        assert found['muster_service_leads{instance_id="b",service="scheduler"}'] == 0
        # One that lost its term leads no more, whatever it says.
        await sign(world, "scheduler", "b", leads=True, epoch=2)
        await sign(world, "scheduler", "a", leads=True, epoch=1)
        found = await values(world)
        assert found['muster_service_leads{instance_id="a",service="scheduler"}'] == 0
        assert found['muster_service_leaders{service="scheduler"}'] == 1


async def test_lag_of_a_process_that_hangs_grows_with_the_log(world: World) -> None:
    async with watched(world):
        await sign(world, "quota", "a", leads=True)
        name = 'muster_service_lag_commits{instance_id="a",service="quota"}'
        assert (await values(world))[name] == 0
        await world.run_to("completed")
        assert (await values(world))[name] >= 5


async def test_log_says_its_size_its_servers_and_when_it_is_full(world: World) -> None:
    async with watched(world):
        found = await values(world)
    assert (found["muster_log_bytes"], found["muster_log_max_bytes"]) == (GIB, 4 * GIB)
    assert found['muster_log_server_up{server="nats-2"}'] == 0
    assert found['muster_log_server_lag_commits{server="nats-2"}'] == 7
    assert found['muster_log_server_leads{server="nats-1"}'] == 1
    assert found["muster_log_growth_bytes_per_second"] > 0
    assert found["muster_log_full_seconds"] > 0


async def test_metrics_of_tenants_are_for_operators_only(world: World) -> None:
    await world.run_to("running")
    assert (await values(world))['muster_tenant_held_gpus{tenant="default"}'] == 1
    async with world.as_("viewer", "eve") as eve:
        assert "muster_tenant" not in await scraped(eve)
    async with world.as_("operator", "olga") as olga:
        assert "muster_tenant_held_gpus" in await scraped(olga)


async def test_an_answer_serves_all_who_ask_within_a_second(world: World) -> None:
    async with world.session.get(world.url + "/metrics") as answer:
        first = await answer.text()
    await world.run_to("running")
    async with world.session.get(world.url + "/metrics") as answer:
        second = await answer.text()
    series = 'muster_jobs{state="running"} 0.0'
    assert series in first and series in second
