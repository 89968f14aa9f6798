"""The reset of a device: its evidence first, then the reset, then a look; what went wrong is its
answer.
"""

import json

import pytest

from libs.common.model import GpuId
from services.node_agent.core.actions import ResetDevice
from services.node_agent.core.observations import DeviceReset
from services.node_agent.drivers.readings import Command, Done, Lacking
from services.node_agent.drivers.simulated import SimulatedDriver
from services.node_agent.health.resetting import reset

GPU = GpuId("GPU-n-0")


class Kept:
    """A folder, or a disk that is full."""

    def __init__(self, full: bool = False) -> None:
        self.files: dict[str, bytes] = {}
        self.full = full

    async def keep(self, name: str, data: bytes) -> None:
        if self.full:
            raise OSError("No space left on device")
        self.files[name] = data


class Departing(SimulatedDriver):
    """One whose devices do not come back."""

    async def control(self, uuid: GpuId, command: Command) -> Done | Lacking:
        self.gpus = []
        return Done()


class Stubborn(SimulatedDriver):
    """A device that no reset mends."""

    def __init__(self, node_id: str, count: int, reading: str) -> None:
        super().__init__(node_id, count)
        self.reading = reading

    async def control(self, uuid: GpuId, command: Command) -> Done | Lacking:
        done = await super().control(uuid, command)
        self.hears(f"simulated 0000:01:00.0 reading 1 {self.reading}")
        return done


async def test_one_that_its_driver_does_not_begin_with_says_so() -> None:
    found = await reset(
        SimulatedDriver("n", 1), Kept().keep, ResetDevice(GpuId("GPU-n-7"), "xid 95")
    )
    assert found == DeviceReset(
        GpuId("GPU-n-7"), "this node has no GPU GPU-n-7: muster gpus lists them", refused="failed"
    )


async def test_evidence_is_kept_and_a_device_that_answers_and_is_free_is_well() -> None:
    kept = Kept()
    found = await reset(SimulatedDriver("n", 1), kept.keep, ResetDevice(GPU, "xid 95"))
    assert found == DeviceReset(GPU, "", {"reset": "done", "driver": "answers", "memory": "free"})
    ((name, data),) = kept.files.items()
    evidence = json.loads(data)
    assert name.startswith("evidence-GPU-n-0-") and (
        evidence["reason"],
        evidence["sample"]["simulated"],
    ) == ("xid 95", True)


@pytest.mark.parametrize(
    ("uuid", "held", "problem"),
    [
        ("GPU-n-0", "pid 5 holds it", "after its reset pid 5 holds it"),
        ("GPU-n-7", "", "it does not answer after its reset"),
    ],
)
async def test_a_device_that_is_held_or_silent_after_its_reset_is_not_well(
    uuid: str, held: str, problem: str
) -> None:
    driver = Departing("n", 1) if uuid != GPU else SimulatedDriver("n", 1)
    if held:
        driver.held[GPU] = held
    assert await reset(driver, Kept().keep, ResetDevice(GpuId(uuid), "xid 95")) == DeviceReset(
        GpuId(uuid), problem
    )


async def test_a_full_disk_does_not_prevent_a_reset_and_the_log_has_the_evidence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = await reset(SimulatedDriver("n", 1), Kept(full=True).keep, ResetDevice(GPU, "xid 95"))
    assert found.problem == "" and found.checks["evidence"] == (
        "in the agent's log, because it could not be saved: No space left on device"
    )
    assert '"reason": "xid 95"' in caplog.text


async def test_a_device_that_still_asks_for_a_reset_or_does_not_stand_its_trial_is_not_well() -> (
    None
):
    async def unfit(uuid: GpuId) -> str:
        return "its command ended with 3"

    driver = SimulatedDriver("n", 1)
    found = await reset(driver, Kept().keep, ResetDevice(GPU, "xid 95"), unfit)
    assert found == DeviceReset(GPU, "after its reset the burn-in failed: its command ended with 3")
    for reading in ("remap_pending", "recovery_action"):
        stubborn = Stubborn("n", 1, reading)
        found = await reset(stubborn, Kept().keep, ResetDevice(GPU, "xid 95"), unfit)
        assert found == DeviceReset(GPU, "after its reset its driver still asks for one")
