"""GET /v1/nodes/{id}/readings: from the node; a tenant gets only devices that its jobs hold."""

from pathlib import Path

import msgspec

from libs.common import subjects
from libs.common.messages.sample_messages import DeviceReadings, ReadingsReport
from libs.common.model import GpuId
from tests.integration.gateway_world import World, gateway_world


async def node(world: World, *devices: DeviceReadings) -> None:
    async def on_ask(subject: str, data: bytes) -> bytes:
        return msgspec.msgpack.encode(ReadingsReport(devices))

    await world.writers.begin_term()
    await world.writers.register("n1")
    await world.settle()
    await world.bus.subscribe(subjects.ask_node("n1", "readings"), on_ask)


async def test_an_operator_sees_all_devices_of_the_node_and_no_others(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        reading = DeviceReadings(GpuId("n1-g0"), busy_percent=80, power_mw=300_000)
        await node(world, reading, DeviceReadings(GpuId("n1-g1")), DeviceReadings(GpuId("alien")))
        found = await world.ask("GET", "/v1/nodes/n1/readings")
        assert [each["uuid"] for each in found["readings"]] == ["n1-g0", "n1-g1"]
        assert found["readings"][0]["busy_percent"] == 80
        assert found["readings"][1]["power_mw"] is None


async def test_a_tenant_sees_the_devices_of_its_jobs_only(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        await node(world, DeviceReadings(GpuId("n1-g0")), DeviceReadings(GpuId("n1-g1")))
        await world.ask("PUT", "/v1/tenants/blue", 201, json={})
        async with world.as_("member", "ada", "blue") as ada:
            assert (await ada.ask("GET", "/v1/nodes/n1/readings"))["readings"] == []
            job_id = (await ada.submit())["id"]
            await world.writers.queue(job_id)
            await world.writers.place(job_id, "n1")
            await world.settle()
            found = await ada.ask("GET", "/v1/nodes/n1/readings")
            assert [each["uuid"] for each in found["readings"]] == ["n1-g0"]


async def test_a_silent_or_unknown_node_is_a_problem(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        await world.writers.begin_term()
        await world.writers.register("n1")
        await world.settle()
        await world.ask("GET", "/v1/nodes/n1/readings", 503)
        await world.ask("GET", "/v1/nodes/n2/readings", 404)
