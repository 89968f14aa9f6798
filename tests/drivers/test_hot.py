"""An agent over each vendor's library limits a device that becomes too hot.

The device takes no new work until it is cool. Then the agent restores its limits.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from libs.common import facts as f
from libs.common.devices.device_controls import hot_policy
from libs.common.settings.settings import Settings
from services.node_agent.devices.sampling import Sampling
from services.node_agent.drivers.local import LocalDriver
from services.node_agent.drivers.readings import Lacking
from services.node_agent.drivers.vendor_devices import VendorDevices
from services.node_agent.drivers.vendor_process import VendorProcess
from services.node_agent.health.listen import listen, watch_of
from services.node_agent.service import Agent
from tests.drivers.fakes import Fakes
from tests.integration.agent_world import World

EVERY_MS = 20


class Heated(World):
    """A world with the devices of one vendor, whose agent samples them."""

    def __init__(self, folder: Path, vendor: str, policy: str) -> None:
        super().__init__(folder)
        self.local = LocalDriver(vendors=[VendorDevices(VendorProcess(vendor, 10.0, 20.0))])
        self.driver = self.local  # type: ignore[assignment]
        self.policy = policy

    def make(self, state_dir: Path | None = None) -> Agent:
        agent = super().make(state_dir)
        agent.sampling = Sampling(self.local, EVERY_MS)
        agent.state.controls.policy = hot_policy(self.policy)
        settings = Settings(state=str(self.state_dir), kernel_log="/nowhere")
        listen(
            settings,
            watch_of(settings, self.local, agent.devices, agent.state.devices.policy),
            self.local,
            agent.sampling,
        )
        return agent

    async def sampled(self) -> tuple[int | Lacking, int | Lacking]:
        (one,) = (await self.local.sample()).values()
        return one.power_cap_mw, one.clock_mhz


@pytest.fixture
async def world(
    request: pytest.FixtureRequest, fakes: Fakes, tmp_path: Path
) -> AsyncIterator[Heated]:
    vendor, policy = request.param
    fakes.tell(vendor, "count * 1")
    made = Heated(tmp_path / "state", vendor, policy)
    await made.scheduler.listen()
    await made.begin()
    yield made
    await made.end()
    await made.local.close()


CASES = (
    (("nvidia", "nvidia=power:50"), (700_000, 1980), (350_000, 1980)),
    (("nvidia", "*=clocks:50"), (700_000, 1980), (700_000, 990)),
    (("amd", "amd=power:60"), (750_000, 2100), (450_000, 2100)),
    (("amd", "amd=clocks:50"), (750_000, 2100), (750_000, 1050)),
    (("intel", "intel=power:50"), (600_000, 1600), (300_000, 1600)),
    (("intel", "intel=clocks:50"), (600_000, 1600), (600_000, 800)),
)


@pytest.mark.parametrize(("world", "own", "cooled"), CASES, indirect=["world"])
async def test_hot_device_gets_lower_limits_until_it_is_cool(
    world: Heated, own: tuple[int, int], cooled: tuple[int, int], fakes: Fakes
) -> None:
    vendor = world.local.vendors[0].process.vendor
    assert await world.sampled() == own
    fakes.tell(vendor, "count * 1", "degrees * 90")
    await world.until(lambda: len(world.facts(f.GpuControlled)) == 1)
    assert await world.sampled() == cooled
    assert [fact.reason for fact in world.facts(f.GpuFaulted)] == ["thermal"]
    fakes.tell(vendor, "count * 1", "degrees * 70")
    await world.until(lambda: len(world.facts(f.GpuControlled)) == 2)
    assert await world.sampled() == own
    told = [(fact.request, fact.outcome, fact.detail) for fact in world.facts(f.GpuControlled)]
    assert told == [(0, "done", "it was too hot"), (0, "done", "it is cool again")]
    await world.until(lambda: len(world.facts(f.GpuRecovered)) == 1)
