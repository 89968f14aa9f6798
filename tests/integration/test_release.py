"""A job is over when its devices are proved clean.

The report names each process that has a device open, and the device stays in quarantine. /dev/full
stands for a GPU.
"""

import asyncio
import errno
import os
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from agent_world import World, world_at
from supervision_world import kill

from libs.common import facts as f
from libs.common.model import GpuId
from services.node_agent.devices.device_holders import holders, isolation
from services.node_agent.health import returning
from services.node_agent.jobs.means import Means
from services.node_agent.machine import processes

DEVICE = GpuId("GPU-n-0")
NUMBER = os.stat("/dev/full").st_rdev
NODES = {DEVICE: ((os.major(NUMBER), os.minor(NUMBER)),)}
# Neither a child of this process nor of a terminal: a job may have another process start one.
STRANGER = "setsid sleep 300 < /dev/full > /dev/null 2>&1 & echo $!"
SOON_NS = 300_000_000


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with world_at(tmp_path) as made:
        made.driver.nodes = NODES
        made.agent.state.release_ns = SOON_NS
        yield made


@pytest.fixture
def strangers() -> Iterator[list[int]]:
    found: list[int] = []
    yield found
    for pid in found:
        kill(pid)


def stranger() -> int:
    """Once it is what it is to be."""
    pid = int(subprocess.run(["sh", "-c", STRANGER], stdout=subprocess.PIPE, check=True).stdout)
    while (seen := processes.process(pid)) is not None and seen.name != "sleep":
        time.sleep(0.005)
    return pid


async def test_process_that_has_a_device_open_after_the_job_is_named_and_the_device_is_quarantined(
    world: World, strangers: list[int]
) -> None:
    await world.start("j", "until [ -e go ]; do sleep 0.02; done")
    await world.said(f.JobStarted, "j")
    strangers.append(stranger())
    (world.state_dir / "go").touch()
    released = await world.said(f.JobReleased, "j")
    fault = next(fault for fault in world.facts(f.GpuFaulted))
    assert (fault.uuid, fault.reason, fault.detail) == (
        DEVICE,
        "quarantined",
        f"open in process {strangers[0]} sleep",
    )
    assert released.checks == {
        "processes": "gone",
        "devices": "held",
        "holders": f"{strangers[0]} sleep",
        "scrub": "not done: only free devices are scrubbed",
    }


async def test_a_quarantined_device_returns_by_itself_when_it_is_let_go_and_not_before(
    world: World, strangers: list[int]
) -> None:
    await world.start("j", "until [ -e go ]; do sleep 0.02; done")
    await world.said(f.JobStarted, "j")
    strangers.append(stranger())
    (world.state_dir / "go").touch()
    await world.said(f.JobReleased, "j")
    await asyncio.sleep(2 * returning.LOOK_S)
    assert world.facts(f.GpuRecovered) == []
    kill(strangers[0])
    await world.until(lambda: [fact.uuid for fact in world.facts(f.GpuRecovered)] == [DEVICE])


async def test_it_returns_under_the_next_agent_too_once_its_driver_says_that_it_is_free(
    world: World,
) -> None:
    world.driver.nodes, world.driver.held = {}, {DEVICE: "12 MiB of its memory are used"}
    await world.start("j", "true")
    await world.said(f.JobReleased, "j")
    world.closed("j")
    await world.drop()
    await world.begin()
    await asyncio.sleep(2 * returning.LOOK_S)
    assert world.facts(f.GpuRecovered) == []
    world.driver.held = {}
    await world.until(lambda: [fact.uuid for fact in world.facts(f.GpuRecovered)] == [DEVICE])


async def test_the_next_agent_looks_for_what_the_last_one_found_and_returns_the_device_no_sooner(
    world: World, strangers: list[int]
) -> None:
    await world.start("j", "until [ -e go ]; do sleep 0.02; done")
    await world.said(f.JobStarted, "j")
    strangers.append(stranger())
    (world.state_dir / "go").touch()
    await world.said(f.JobReleased, "j")
    world.closed("j")
    await world.drop()
    await world.begin()
    await asyncio.sleep(2 * returning.LOOK_S)
    assert world.facts(f.GpuRecovered) == []
    kill(strangers[0])
    await world.until(lambda: [fact.uuid for fact in world.facts(f.GpuRecovered)] == [DEVICE])


async def test_the_least_memory_that_a_device_was_seen_to_use_outlives_the_agent_and_not_the_boot(
    world: World,
) -> None:
    world.driver.baseline = {"0000:01:00.0": 5}
    memory = world.agent.memory
    while await returning.idle(memory, world.agent.machine.boot_id) != world.driver.baseline:
        await asyncio.sleep(0.02)
    assert await returning.idle(memory, "another") == {}
    await world.drop()
    world.driver.baseline = {"0000:01:00.0": 7}
    await world.begin()
    assert world.driver.baseline == {"0000:01:00.0": 5}


async def test_a_device_that_is_let_go_in_time_is_released_clean(
    world: World, strangers: list[int]
) -> None:
    world.agent.state.release_ns = 60 * 1_000_000_000
    await world.start("j", "until [ -e go ]; do sleep 0.02; done")
    await world.said(f.JobStarted, "j")
    strangers.append(stranger())
    (world.state_dir / "go").touch()
    await world.said(f.JobFinished, "j")
    kill(strangers[0])
    released = await world.said(f.JobReleased, "j")
    assert (released.checks["devices"], released.checks["holders"], world.facts(f.GpuFaulted)) == (
        "free",
        "none",
        [],
    )


async def test_process_that_had_the_device_open_before_the_job_does_not_belong_to_it(
    world: World, strangers: list[int]
) -> None:
    strangers.append(stranger())
    seen = processes.process(strangers[0])
    assert seen is not None
    assert holders(NODES, processes.boot_ns_of(seen.start_ticks)) == {
        DEVICE: [f"{strangers[0]} sleep"]
    }
    assert holders(NODES, processes.boot_ns_of(seen.start_ticks) + 1) == {}
    assert holders(NODES, 0, but=strangers) == {}  # as the weight server


def input_of(pid: int) -> int:
    """Return the device of a process's standard input; 0 while a shell replaces it."""
    try:
        return os.stat(f"/proc/{pid}/fd/0").st_rdev
    except FileNotFoundError:
        return 0


def test_process_of_a_terminal_that_opened_a_device_does_not_hold_it(strangers: list[int]) -> None:
    primary, secondary = os.openpty()
    line = ["setsid", "-c", "sh", "-c", "sleep 300 < /dev/full & echo $!; wait"]
    with subprocess.Popen(line, stdin=secondary, stdout=subprocess.PIPE, text=True) as looking:
        assert looking.stdout is not None
        strangers += [int(looking.stdout.readline()), looking.pid]
        try:
            while input_of(strangers[0]) != NUMBER:
                assert looking.poll() is None, "the shell ended"
            assert holders(NODES, 0).get(DEVICE, []) == []
        finally:
            for pid in strangers:
                kill(pid)
    os.close(primary)
    os.close(secondary)


class Hung(Means):
    """Means of which one waits for ever."""

    async def let_go(self, key: str) -> tuple[dict[str, str], list[str]]:
        await asyncio.Event().wait()
        raise AssertionError


class Failing(Means):
    """Means that cannot write a file."""

    async def let_go(self, key: str) -> tuple[dict[str, str], list[str]]:
        raise OSError(errno.ENOSPC, "No space left on device")


async def test_release_check_that_fails_quarantines_the_device(world: World) -> None:
    world.agent.devices.means = Failing()
    await world.start("j", "true")
    await world.until(lambda: bool(world.facts(f.GpuFaulted)))
    (fault,) = world.facts(f.GpuFaulted)
    why = "not known: the release check failed: [Errno 28] No space left on device"
    assert (fault.uuid, fault.reason, fault.detail) == (DEVICE, "quarantined", why)
    world.agent.devices.means = world.agent.means
    await world.until(lambda: [fact.uuid for fact in world.facts(f.GpuRecovered)] == [DEVICE])


async def test_a_release_check_of_which_a_part_never_ends_quarantines_the_device(
    world: World,
) -> None:
    world.agent.devices.means, world.agent.devices.look_s = Hung(), 0.4
    await world.start("j", "true")
    released = await world.said(f.JobReleased, "j")
    why = "not known: the release check took longer than 0 s"
    assert released.checks == {"processes": why, "devices": "held"}
    fault = next(fault for fault in world.facts(f.GpuFaulted))
    assert (fault.uuid, fault.reason, fault.detail) == (DEVICE, "quarantined", why)
    world.agent.devices.means = world.agent.means
    await world.until(lambda: [fact.uuid for fact in world.facts(f.GpuRecovered)] == [DEVICE])


async def test_a_job_on_devices_in_name_only_has_nothing_to_look_for(world: World) -> None:
    world.driver.nodes = {}
    await world.start("j", "true")
    assert (await world.said(f.JobReleased, "j")).checks == {"processes": "gone", "devices": "free"}


async def test_of_a_real_device_without_a_node_the_receipt_says_that_nobody_looked(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.driver, "simulated", False)
    world.driver.nodes = {DEVICE: ()}
    await world.start("j", "true")
    released = await world.said(f.JobReleased, "j")
    assert released.checks["holders"] == f"not known: no device node of {DEVICE} was found"
    only = [gpu for gpu in world.driver.gpus if gpu.uuid == DEVICE]
    assert (
        isolation({"devices": "enforced"}, world.driver, only)["devices"]
        == f"lost: no device node of {DEVICE} was found"
    )
    world.driver.nodes = NODES
    assert isolation({"devices": "enforced"}, world.driver, only)["devices"] == "enforced"
