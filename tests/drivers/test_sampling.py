"""The agent samples its devices at a set rate, and a device that hangs delays nothing else."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from libs.common import facts as f
from libs.common.devices.topology import Topology
from libs.common.model import GpuHold, GpuId
from libs.common.subjects import ask_node
from services.node_agent.devices.sampling import Sampling
from services.node_agent.drivers.local import LocalDriver
from services.node_agent.drivers.vendor_devices import VendorDevices
from services.node_agent.drivers.vendor_process import VendorProcess
from services.node_agent.service import Agent
from tests.drivers.fakes import Fakes
from tests.integration.agent_world import NODE, World, world_at

FIRST = GpuId("GPU-fake-0")
XID, XID_EVENT = 79, 8
WAIT_S = 20.0


def local() -> LocalDriver:
    return LocalDriver(vendors=[VendorDevices(VendorProcess("nvidia", 1.0, 5.0))])


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not holds():
            await asyncio.sleep(0.01)


async def test_devices_are_sampled_at_the_set_interval(
    fakes: Fakes, caplog: pytest.LogCaptureFixture
) -> None:
    driver = local()
    await driver.inventory()
    sampling = Sampling(driver, 10)
    seen: set[int] = set()
    running = asyncio.create_task(sampling.run())

    def many() -> bool:
        seen.update(sample.at_ns for sample in sampling.latest.values())
        return len(seen) >= 40

    await until(many)
    fakes.happen("nvidia", 1, XID_EVENT, XID)
    await until(lambda: "nvidia 0000:02:00.0: xid NVML event 0x8" in caplog.text)
    running.cancel()
    await driver.close()


class LocalWorld(World):
    def make(self, state_dir: Path | None = None) -> Agent:
        agent = super().make(state_dir)
        agent.sampling = Sampling(self.driver, 20)
        return agent


async def test_node_with_a_wedged_device_serves_its_other_device(
    fakes: Fakes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = LocalWorld(tmp_path / "state")
    world.driver = local()  # type: ignore[assignment]
    await world.scheduler.listen()
    await world.begin()
    fakes.tell("nvidia", "nvmlDeviceGetPowerUsage 1 hang")
    await until(lambda: "driver_wedged" in caplog.text)
    deadline = world.agent.state.lease_deadline_ns
    order = world.order("good", "true")
    await world.scheduler.send(replace(order, gpus=(GpuHold(FIRST),)))
    await world.said(f.JobReleased, "good")
    assert world.facts(f.GpuFaulted) == []
    await until(lambda: world.agent.state.lease_deadline_ns > deadline)
    await world.end()
    await world.driver.close()


async def test_device_whose_memory_another_program_uses_starts_no_job_until_it_is_free(
    fakes: Fakes, tmp_path: Path
) -> None:
    world = LocalWorld(tmp_path / "state")
    world.driver = local()  # type: ignore[assignment]
    await world.scheduler.listen()
    await world.begin()
    await until(lambda: world.agent.sampling.latest != {})
    fakes.tell("nvidia", "used_mib 0 3000", "pid 0 1")
    await until(lambda: world.agent.sampling.latest[FIRST].memory_used_bytes == 3000 << 20)
    await world.place(replace(world.order("early", "true"), gpus=(GpuHold(FIRST),)))
    refused = await world.said(f.JobRefused, "early")
    why = "3000 MiB of its memory are used, 0 MiB when it was idle"
    assert refused.reason == f"GPU {FIRST} is not fit for a job: {why}"
    (fault,) = world.facts(f.GpuFaulted)
    assert (fault.reason, fault.detail, fault.source) == ("quarantined", why, "preflight")
    fakes.tell("nvidia")
    await until(lambda: world.facts(f.GpuRecovered) != [])
    await world.place(replace(world.order("late", "true"), gpus=(GpuHold(FIRST),)))
    assert (await world.said(f.JobFinished, "late")).exit_code == 0
    await world.end()
    await world.driver.close()


async def test_a_job_over_its_share_of_memory_is_warned_and_then_ended(
    fakes: Fakes, tmp_path: Path
) -> None:
    world = LocalWorld(tmp_path / "state")
    world.driver = local()  # type: ignore[assignment]
    await world.scheduler.listen()
    await world.begin()
    world.agent.state.devices.policy = replace(world.agent.state.devices.policy, share_grace_s=1)
    order = world.order("greedy", "exec sleep 100")
    await world.place(replace(order, gpus=(GpuHold(FIRST, 50),)))
    pid = (await world.said(f.JobStarted, "greedy")).pid
    fakes.tell("nvidia", "used_mib 0 60000", f"pid 0 {pid}")
    finished = await world.said(f.JobFinished, "greedy")
    fakes.tell("nvidia")
    (warned,) = world.facts(f.JobOverShare)
    assert (warned.uuid, warned.used_bytes, warned.share_bytes) == (FIRST, 60000 << 20, 40 << 30)
    assert finished.reason == "over_share"
    await world.said(f.JobReleased, "greedy")
    await world.end()
    await world.driver.close()


async def test_node_answers_a_request_for_its_topology(tmp_path: Path) -> None:
    async with world_at(tmp_path) as world:
        answer = await world.bus.request(ask_node(NODE, "topology"), b"", WAIT_S)
    found = msgspec.msgpack.decode(answer, type=Topology)
    assert [spot.device for spot in found.spots] == [
        gpu.uuid for gpu in await world.driver.inventory()
    ]
