"""Devices in and out of service over real HTTP: what is recorded, what is left, and who may."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from libs.common import facts as f
from libs.common.model import GpuId, NodeId
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


async def test_a_drained_node_shows_its_remaining_jobs_and_comes_back(world: World) -> None:
    job = await running(world)
    drained = await world.ask("PUT", "/v1/nodes/n1/service", json={"service": "draining"})
    assert [(gpu["uuid"], gpu["service"], gpu["state"]) for gpu in drained["gpus"]] == [
        ("n1-g0", "draining", "MAINTENANCE"),
        ("n1-g1", "draining", "MAINTENANCE"),
    ]
    assert [[holder["job_id"] for holder in gpu["holders"]] for gpu in drained["gpus"]] == [
        [job],
        [],
    ]
    assert (await world.ask("GET", f"/v1/jobs/{job}"))["state"] == "running"
    await world.ask("PUT", "/v1/nodes/n1/service", json={"service": "draining"})
    await world.ask("PUT", "/v1/nodes/n1/service", json={"service": "online"})
    assert (await world.ask("GET", "/v1/gpus/n1-g1"))["state"] == "AVAILABLE"
    said = [
        (fact.uuid, fact.service)
        for fact in await world.said()
        if isinstance(fact, f.GpuServiceSet)
    ]
    assert said == [(uuid, word) for word in ("draining", "online") for uuid in ("n1-g0", "n1-g1")]


async def test_a_device_with_a_job_goes_offline_by_force_alone(world: World) -> None:
    job = await running(world)
    refused = await world.ask("PUT", "/v1/gpus/n1-g0/service", 409, json={"service": "offline"})
    assert refused["jobs"] == [job]
    assert (await world.ask("PUT", "/v1/gpus/n1-g1/service", json={"service": "offline"}))[
        "service"
    ] == "offline"
    await world.ask("PUT", "/v1/gpus/n1-g0/service", json={"service": "offline", "force": True})
    assert [type(fact) for fact in await world.said()][-2:] == [f.GpuServiceSet, f.RequeueRequested]


async def test_controls_of_devices_and_nodes_show_their_outcome(world: World) -> None:
    told = await world.ask("PUT", "/v1/nodes/n1/controls/power", 202, json={"value": "300"})
    assert [
        (gpu["controls"]["power"]["value"], gpu["controls"]["power"]["outcome"])
        for gpu in told["gpus"]
    ] == [("300", "")] * 2
    request = told["gpus"][0]["controls"]["power"]["request"]
    fields = {
        "control": "power",
        "value": "300",
        "request": request,
        "outcome": "lacking",
        "detail": "why",
    }
    await world.writers.on(
        "n1", f.GpuControlled(node_id=NodeId("n1"), uuid=GpuId("n1-g0"), **fields)
    )
    await world.settle()
    found = (await world.ask("GET", "/v1/gpus/n1-g0"))["controls"]["power"]
    assert (found["outcome"], found["detail"], found["in_force"]) == ("lacking", "why", "")
    assert (
        "muster gpu"
        not in (
            await world.ask("PUT", "/v1/gpus/n1-g0/controls/colour", 404, json={"value": "red"})
        )["detail"]
    )
    assert (
        "give watts"
        in (await world.ask("PUT", "/v1/gpus/n1-g0/controls/power", 422, json={"value": "much"}))[
            "detail"
        ]
    )
    asked = [fact for fact in await world.said() if isinstance(fact, f.GpuControlRequested)]
    assert [(fact.uuid, fact.control, fact.value) for fact in asked] == [
        ("n1-g0", "power", "300"),
        ("n1-g1", "power", "300"),
    ]


async def test_a_reset_is_refused_while_a_job_has_the_device_unless_it_drains(world: World) -> None:
    job = await running(world)
    assert (await world.ask("PUT", "/v1/gpus/n1-g0/controls/reset", 409, json={}))["jobs"] == [job]
    assert (await world.ask("PUT", "/v1/gpus/n1-g1/controls/reset", 202))["controls"]["reset"][
        "outcome"
    ] == ""
    await world.ask("PUT", "/v1/gpus/n1-g0/service", json={"service": "draining"})
    assert (await world.ask("PUT", "/v1/gpus/n1-g0/controls/reset", 202))["controls"]["reset"][
        "outcome"
    ] == ""


async def test_devices_that_are_not_known_are_named_and_only_operators_say(world: World) -> None:
    await world.settle()
    for method, path in (
        ("PUT", "/v1/gpus/x/service"),
        ("PUT", "/v1/nodes/x/service"),
        ("GET", "/v1/gpus/x"),
    ):
        assert (
            "x"
            in (
                await world.ask(
                    method, path, 404, json={"service": "online"} if method == "PUT" else None
                )
            )["detail"]
        )
    async with world.as_("member", "ada") as ada:
        await ada.ask("PUT", "/v1/gpus/n1-g0/service", 403, json={"service": "online"})
        await ada.ask("PUT", "/v1/gpus/n1-g0/controls/power", 403, json={"value": "300"})
        assert (await ada.ask("GET", "/v1/gpus/n1-g0"))["service"] == "online"
