"""The reset of a device: its evidence first, then the reset, then a look; what went wrong is its answer."""

import json

import pytest

from libs.common.model import GpuId
from services.node_agent.actions import ResetDevice
from services.node_agent.drivers.simulated import SimulatedDriver
from services.node_agent.health.resetting import reset
from services.node_agent.observations import DeviceReset

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


async def test_evidence_is_kept_and_a_device_that_answers_and_is_free_is_well() -> None:
    kept = Kept()
    found = await reset(SimulatedDriver("n", 1), kept.keep, ResetDevice(GPU, "xid 95"))
    assert found == DeviceReset(GPU, "", {"reset": "done", "driver": "answers", "memory": "free"})
    ((name, data),) = kept.files.items()
    evidence = json.loads(data)
    assert name.startswith("evidence-GPU-n-0-") and (evidence["reason"], evidence["sample"]["simulated"]) == ("xid 95", True)


@pytest.mark.parametrize(
    ("uuid", "held", "full", "problem"),
    [
        ("GPU-n-0", "pid 5 holds it", False, "after its reset pid 5 holds it"),
        ("GPU-n-7", "", False, "it does not answer after its reset"),
        ("GPU-n-0", "", True, "No space left on device"),
    ],
)
async def test_a_device_that_is_held_or_does_not_answer_or_whose_evidence_cannot_be_kept_is_not_well(
    uuid: str, held: str, full: bool, problem: str
) -> None:
    driver = SimulatedDriver("n", 1)
    if held:
        driver.held[GPU] = held
    assert await reset(driver, Kept(full).keep, ResetDevice(GpuId(uuid), "xid 95")) == DeviceReset(GpuId(uuid), problem)
