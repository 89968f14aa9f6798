"""The watch that samples the devices of jobs: over simulated devices and a real process."""

import asyncio
import subprocess
from collections.abc import Iterator

import pytest

from libs.common.model import AttemptRef, GpuId, JobId, NodeId
from services.node_agent.core import observations as o
from services.node_agent.core import state as s
from services.node_agent.core.device_use import OneDevice, Use
from services.node_agent.devices import use_watch
from services.node_agent.devices.attempts import works
from services.node_agent.devices.sampling import Sampling
from services.node_agent.drivers.simulated import SimulatedDriver

GPU = GpuId("GPU-n-0")


class Files:
    """The kept files of an agent, in memory; `full`: the disk takes nothing."""

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}
        self.full = False

    async def directory(self) -> str:
        return "d"

    async def load(self) -> int:
        return 0

    async def store(self, incarnation: int) -> None:
        """Do nothing."""

    async def kept(self, name: str) -> bytes:
        return self.data.get(name, b"")

    async def keep(self, name: str, data: bytes) -> None:
        if self.full:
            raise OSError("no space is left")
        self.data[name] = data


@pytest.fixture
def job() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def state_of(pid: int) -> s.State:
    adopted = o.Adopted(AttemptRef(JobId("j"), 1), gpus=(GPU,))
    state = s.begin(NodeId("n"), 1, (adopted,))
    state.attempts["j.1"].pid = pid
    return state


async def watched(state: s.State, files: Files, rounds: int) -> list[o.UseSampled]:
    """Return the observations of so many rounds."""
    driver = SimulatedDriver("n", 1)
    driver.running = lambda: works(state, lambda ref: None)
    told: list[o.UseSampled] = []

    def tell(seen: object) -> None:
        assert isinstance(seen, o.UseSampled)
        told.append(seen)

    watching = asyncio.create_task(use_watch.watch(lambda: state, Sampling(driver, 0), tell, files))
    async with asyncio.timeout(30):
        while len(told) < rounds:
            await asyncio.sleep(0.01)
    watching.cancel()
    return told


async def test_the_devices_of_a_running_job_are_sampled_and_the_sums_are_kept(
    job: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(use_watch, "LOOK_S", 0.02)
    monkeypatch.setattr(use_watch, "KEEP_LOOKS", 1)
    state, files = state_of(job.pid), Files()
    first, *others = await watched(state, files, 4)
    assert first == o.UseSampled({})
    for seen in others:
        reading = seen.readings[GPU]
        assert reading.simulated and reading.jobs == 1 and reading.power_mw
        assert reading.busy_percent is not None and reading.memory_used_bytes
    assert use_watch.restored(files.data[use_watch.FILE]) == {"j.1": state.attempts["j.1"].use}


async def test_the_next_agent_gets_what_was_kept_and_a_full_disk_stops_nothing(
    job: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(use_watch, "LOOK_S", 0.02)
    monkeypatch.setattr(use_watch, "KEEP_LOOKS", 1)
    state, files = state_of(job.pid), Files()
    state.attempts["j.1"].use = Use(devices={GPU: OneDevice(sampled_ms=5)})
    await watched(state, files, 3)
    files.full = True
    first, *_ = await watched(state_of(job.pid), files, 4)
    assert first.kept["j.1"].devices[GPU].sampled_ms == 5


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x81"])
def test_a_damaged_file_is_no_sums(data: bytes) -> None:
    assert use_watch.restored(data) == {}
