"""Devices in and out of service over real HTTP: what is recorded, what is left, and who may."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from libs.common import facts as f
from tests.integration.gateway_world import World, gateway_world


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with gateway_world(tmp_path) as found:
        await found.writers.register("n1")
        yield found


async def running(world: World) -> str:
    job = str((await world.submit())["id"])
    await world.writers.begin_term()
    await world.writers.queue(job)
    await world.writers.place(job, "n1")
    await world.writers.start(job, "n1")
    await world.settle()
    return job


async def test_a_node_drains_shows_what_is_left_and_comes_back(world: World) -> None:
    job = await running(world)
    drained = await world.ask("PUT", "/v1/nodes/n1/service", json={"service": "draining"})
    assert [(gpu["uuid"], gpu["service"], gpu["state"]) for gpu in drained["gpus"]] == [
        ("n1-g0", "draining", "MAINTENANCE"),
        ("n1-g1", "draining", "MAINTENANCE"),
    ]
    assert [[holder["job_id"] for holder in gpu["holders"]] for gpu in drained["gpus"]] == [[job], []]
    assert (await world.ask("GET", f"/v1/jobs/{job}"))["state"] == "running"
    await world.ask("PUT", "/v1/nodes/n1/service", json={"service": "draining"})
    await world.ask("PUT", "/v1/nodes/n1/service", json={"service": "online"})
    assert (await world.ask("GET", "/v1/gpus/n1-g1"))["state"] == "AVAILABLE"
    said = [(fact.uuid, fact.service) for fact in await world.said() if isinstance(fact, f.GpuServiceSet)]
    assert said == [(uuid, word) for word in ("draining", "online") for uuid in ("n1-g0", "n1-g1")]


async def test_a_device_with_a_job_goes_offline_by_force_alone(world: World) -> None:
    job = await running(world)
    refused = await world.ask("PUT", "/v1/gpus/n1-g0/service", 409, json={"service": "offline"})
    assert refused["jobs"] == [job]
    assert (await world.ask("PUT", "/v1/gpus/n1-g1/service", json={"service": "offline"}))["service"] == "offline"
    await world.ask("PUT", "/v1/gpus/n1-g0/service", json={"service": "offline", "force": True})
    assert [type(fact) for fact in await world.said()][-2:] == [f.GpuServiceSet, f.RequeueRequested]


async def test_devices_that_are_not_known_are_named_and_only_operators_say(world: World) -> None:
    await world.settle()
    for method, path in (("PUT", "/v1/gpus/x/service"), ("PUT", "/v1/nodes/x/service"), ("GET", "/v1/gpus/x")):
        assert "x" in (await world.ask(method, path, 404, json={"service": "online"} if method == "PUT" else None))["detail"]
    async with world.as_("member", "ada") as ada:
        await ada.ask("PUT", "/v1/gpus/n1-g0/service", 403, json={"service": "online"})
        assert (await ada.ask("GET", "/v1/gpus/n1-g0"))["service"] == "online"
