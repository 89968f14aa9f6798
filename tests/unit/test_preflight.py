"""The look at a job's devices before it starts: what is fresh and well is not asked again, what is
bad is named with its own cause.
"""

from typing import Any

import pytest
from msgspec.structs import replace

from libs.common.errors import Refused
from libs.common.model import GpuId
from services.node_agent.core import devices as d
from services.node_agent.core import kept_devices
from services.node_agent.core import state as s
from services.node_agent.core.devices import Trouble
from services.node_agent.core.observations import DeviceTroubleChanged, Observation
from services.node_agent.devices.sampling import Sampling
from services.node_agent.directories.protocol import Machine
from services.node_agent.drivers.readings import Lacking, Sample
from services.node_agent.drivers.simulated import SimulatedDriver
from services.node_agent.health.preflight import Preflight, wrong
from tests.given_node import GPU, Node

OTHER = GpuId("GPU-n-1")


class Looks(SimulatedDriver):
    """Counts how often its devices are asked; it may play a real one."""

    def __init__(self, simulated: bool = True) -> None:
        super().__init__("n", 2)
        self.simulated, self.asked, self.age_ns = simulated, 0, 0  # type: ignore[misc]

    async def sample(self) -> Any:
        self.asked += 1
        return {
            uuid: replace(sample, at_ns=sample.at_ns - self.age_ns)
            for uuid, sample in (await super().sample()).items()
        }


async def looked(
    driver: Looks, *uuids: GpuId, every_ms: int = 0, **machine: Any
) -> tuple[list[Observation], str]:
    """Return the observations of a preflight, and the reason for a refusal."""
    told: list[Observation] = []
    state, sampling = s.begin(Node().state.node_id, 1, ()), Sampling(driver, every_ms)
    await sampling.look()
    driver.asked = 0
    preflight = Preflight(
        driver=driver,
        sampling=sampling,
        machine=Machine(node_id="n", address="a", **machine),
        state=lambda: state,
        tell=told.append,
    )
    try:
        await preflight.look("j.1", uuids)
    except Refused as error:
        return told, str(error)
    return told, ""


@pytest.mark.parametrize(
    ("readings", "reason", "verdict"),
    [
        ({"temperature_c": 85}, "thermal", ""),
        ({"recovery_action": 2}, "recovery_action", "reboot_node"),
        ({"remap_pending": 1}, "remap_pending", "drain_then_reset"),
        ({"temperature_c": 84, "recovery_action": 0, "remap_pending": 0}, "", ""),
        ({"recovery_action": 99}, "", ""),
        ({}, "", ""),
    ],
)
def test_preflight_names_each_reason_against_work_on_a_device(
    readings: dict[str, int], reason: str, verdict: str
) -> None:
    found = wrong(Sample(pci_bus="0000:01:00.0", at_ns=1, **readings), 85)  # type: ignore[arg-type]
    assert (
        (found[0], found[1].health, found[1].verdict) == (reason, "offline", verdict)
        if found is not None
        else reason == ""
    )


async def test_devices_that_are_well_are_not_asked_again() -> None:
    driver = Looks()
    assert await looked(driver, GPU, OTHER) == ([], "") and driver.asked == 0
    assert await looked(driver) == ([], "") and driver.asked == 0


async def test_a_bad_device_is_looked_at_again_and_goes_out_of_use_by_its_own_cause() -> None:
    driver = Looks()
    driver.hears("simulated 0000:02:00.0 reading 90 temperature_c")
    hot = Trouble("offline", "90 C; from 85 C on", source="preflight")
    why = f"GPU {OTHER} is not fit for a job: 90 C; from 85 C on"
    assert (
        await looked(driver, GPU, OTHER) == ([DeviceTroubleChanged(OTHER, "thermal", hot)], why)
        and driver.asked == 1
    )
    assert await looked(driver, GPU) == ([], "")
    assert await looked(driver, OTHER, preflight=False) == ([], "") and driver.asked == 0


async def test_a_device_that_does_not_answer_is_quarantined() -> None:
    lost = GpuId("GPU-n-7")
    trouble = Trouble("offline", "its driver does not answer", source="preflight")
    assert await looked(Looks(), lost) == (
        [DeviceTroubleChanged(lost, "quarantined", trouble)],
        f"GPU {lost} is not fit for a job: {trouble.detail}",
    )


async def test_old_sample_or_used_memory_does_not_prove_a_real_device_clean() -> None:
    driver = Looks(simulated=False)
    assert await looked(driver, GPU, every_ms=100) == ([], "") and driver.asked == 0
    driver.age_ns = 1_100_000_000
    assert await looked(driver, GPU, every_ms=100) == ([], "") and driver.asked == 1
    assert await looked(driver, GPU, every_ms=1_000) == ([], "") and driver.asked == 0
    driver.age_ns = 0
    driver.baseline = {"0000:01:00.0": -(1 << 40)}
    assert await looked(driver, GPU, every_ms=100) == ([], "") and driver.asked == 1
    driver.held = {GPU: "pid 5 uses it"}
    left = Trouble("offline", "pid 5 uses it", source="preflight")
    assert (await looked(driver, GPU, every_ms=100))[0] == [
        DeviceTroubleChanged(GPU, "quarantined", left)
    ]


def test_memory_used_by_no_job_is_checked_with_the_driver_only() -> None:
    made = Node()
    kept_devices.restore(made.state.devices, "boot", [], b"")
    made.see(
        DeviceTroubleChanged(GPU, "quarantined", Trouble("offline", "used", source="preflight"))
    )
    assert made.state.devices.left == {GPU: d.Leftover()}


def test_missing_readings_are_no_reason_against_work() -> None:
    lacking: Any = Lacking("none")
    assert (
        wrong(
            Sample(
                pci_bus="p",
                at_ns=1,
                temperature_c=lacking,
                remap_pending=lacking,
                recovery_action=lacking,
            ),
            0,
        )
        is None
    )
