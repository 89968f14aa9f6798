"""A device that only waits for its turn is not taken for one that does not answer.

A vendor's driver is called for one device after the other. The time of a call counts against its
device alone; a driver that hangs as a whole takes all devices of its vendor out of use.
"""

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from libs.common import facts as f
from libs.common.model import GpuHold, GpuId
from services.node_agent.devices.sampling import Sampling
from services.node_agent.drivers.local import LocalDriver
from services.node_agent.drivers.vendor_devices import VendorDevices
from services.node_agent.drivers.vendor_process import VendorProcess
from services.node_agent.service import Agent
from tests.drivers.fakes import Fakes
from tests.integration.agent_world import World

FIRST = GpuId("GPU-fake-0")
# A first call may take longer than the rest of a release check.
ANSWER_S, BEGIN_S, LOOK_S = 1.0, 6.0, 2.0
# A release check that finds something is repeated for this time.
SOON_NS = 300_000_000


class LocalWorld(World):
    """A world with three NVIDIA devices, whose agent samples them all the time."""

    def make(self, state_dir: Path | None = None) -> Agent:
        agent = super().make(state_dir)
        agent.sampling = Sampling(self.driver, 20)
        agent.devices.look_s = LOOK_S
        return agent


@pytest.fixture
async def world(fakes: Fakes, tmp_path: Path) -> AsyncIterator[LocalWorld]:
    fakes.tell("nvidia", "count * 3")
    made = LocalWorld(tmp_path / "state")
    made.driver = LocalDriver(
        vendors=[VendorDevices(VendorProcess("nvidia", ANSWER_S, BEGIN_S), aside_s=60.0)]
    )
    await made.scheduler.listen()
    await made.begin()
    yield made
    await made.end()
    await made.driver.close()


async def started(world: LocalWorld) -> None:
    """Start a job on the first device, which ends once the file `go` exists."""
    world.agent.state.release_ns = SOON_NS
    order = world.order("j", "until [ -e go ]; do sleep 0.02; done")
    await world.place(replace(order, gpus=(GpuHold(FIRST),)))
    await world.said(f.JobStarted, "j")


async def test_device_that_waits_while_others_hang_is_released_clean(
    world: LocalWorld, fakes: Fakes, caplog: pytest.LogCaptureFixture
) -> None:
    await started(world)
    fakes.tell(
        "nvidia",
        "count * 3",
        "nvmlDeviceGetPowerUsage 1 hang",
        "nvmlDeviceGetPowerUsage 2 hang",
    )
    # The third device is called next, by a new process, which has BEGIN_S of time for it.
    await world.until(lambda: "nvidia 0000:02:00.0 did not answer" in caplog.text)
    (world.state_dir / "go").touch()
    released = await world.said(f.JobReleased, "j")
    assert (released.checks["processes"], released.checks["devices"]) == ("gone", "free")
    assert [fault.uuid for fault in world.facts(f.GpuFaulted)] == []
    assert "nvidia 0000:03:00.0 did not answer" in caplog.text


async def test_device_of_a_driver_that_hangs_as_a_whole_is_not_clean_and_the_driver_is_named(
    world: LocalWorld, fakes: Fakes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    await started(world)
    world.driver.vendors[0].process.begin_s = ANSWER_S
    fakes.tell("nvidia", "* * hang")
    (world.state_dir / "go").touch()
    released = await world.said(f.JobReleased, "j")
    assert released.checks["devices"] == "held"
    (fault,) = [fault for fault in world.facts(f.GpuFaulted) if fault.uuid == FIRST]
    assert (fault.reason, fault.detail) == ("quarantined", "its driver does not answer")
    await world.until(lambda: "GPU nvidia (all): driver_wedged" in caplog.text)
