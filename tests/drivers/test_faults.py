"""A device or driver that does not answer is named and set aside, and nothing else waits."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from libs.common.errors import Unavailable
from libs.common.model import GpuId
from services.node_agent.drivers import readings as r
from services.node_agent.drivers.local import LocalDriver
from services.node_agent.drivers.readings import Done
from services.node_agent.drivers.vendor_devices import VendorDevices
from services.node_agent.drivers.vendor_process import VendorProcess
from services.node_agent.machine.processes import process
from tests.drivers import trees
from tests.drivers.fakes import Fakes

FIRST, SECOND, THIRD = (GpuId(f"GPU-fake-{index}") for index in range(3))
ANSWER_S, BEGIN_S, ASIDE_S = 0.5, 20.0, 0.4
# Deadline of a child that is started again: it must import the bindings in this time.
COLD_S = 5.0


def waiting_for(
    answer_s: float, aside_s: float = ASIDE_S, command: tuple[str, ...] = ()
) -> LocalDriver:
    return LocalDriver(
        vendors=[VendorDevices(VendorProcess("nvidia", answer_s, BEGIN_S, command), aside_s)]
    )


@pytest_asyncio.fixture
async def driver(fakes: Fakes) -> AsyncIterator[LocalDriver]:
    fakes.tell("nvidia", "count * 3")
    driver = waiting_for(10.0)
    await driver.inventory()
    driver.vendors[0].process.answer_s = ANSWER_S
    driver.vendors[0].process.begin_s = COLD_S
    yield driver
    await driver.close()


async def happened(driver: LocalDriver) -> list[tuple[str, str]]:
    return [(event.kind, event.pci_bus) for event in await driver.events()]


async def stale(driver: LocalDriver) -> list[str]:
    """Return the devices for which a round has only the last sample."""
    return [uuid for uuid, sample in (await driver.sample()).items() if sample.stale]


@pytest.mark.attack
async def test_after_one_silent_call_all_devices_keep_their_last_values(
    driver: LocalDriver, fakes: Fakes
) -> None:
    fakes.tell("nvidia", "count * 3", "nvmlDeviceGetPowerUsage 1 hang")
    found = await driver.sample()
    assert [(uuid, sample.stale) for uuid, sample in found.items()] == [
        (FIRST, False),
        (SECOND, True),
        (THIRD, False),
    ]
    assert await driver.unclean([FIRST]) == {}
    fakes.tell("nvidia", "count * 3")
    assert await stale(driver) == [] and await happened(driver) == []
    fakes.tell("nvidia", "count * 3", "nvmlDeviceGetPowerUsage 1 hang")
    assert await stale(driver) == [SECOND]
    assert await happened(driver) == []


@pytest.mark.attack
async def test_one_silent_call_for_events_takes_no_device_of_the_vendor_out(
    driver: LocalDriver, fakes: Fakes
) -> None:
    await driver.events()
    fakes.tell("nvidia", "count * 3", "nvmlEventSetWait_v2 * hang")
    assert await happened(driver) == []
    fakes.tell("nvidia", "count * 3")
    assert await stale(driver) == [] and list(await driver.sample()) == [FIRST, SECOND, THIRD]
    assert await happened(driver) == []


async def test_a_stale_device_is_never_clean(driver: LocalDriver, fakes: Fakes) -> None:
    fakes.tell("nvidia", "count * 3", "nvmlDeviceGetPowerUsage 1 hang")
    assert await stale(driver) == [SECOND]
    driver.vendors[0].aside_s = 60.0
    assert await driver.unclean([SECOND]) == {SECOND: "its driver does not answer"}


async def test_a_device_whose_call_hangs_twice_is_named_and_the_others_go_on(
    driver: LocalDriver, fakes: Fakes
) -> None:
    child = driver.vendors[0].process.child
    assert child is not None
    driver.vendors[0].aside_s = 60.0
    fakes.tell("nvidia", "count * 3", "nvmlDeviceGetPowerUsage 1 hang")
    assert await stale(driver) == [SECOND]
    assert list(await driver.sample()) == [FIRST, THIRD]
    assert await happened(driver) == [(r.WEDGED, "0000:02:00.0")]
    assert child.returncode == -signal.SIGKILL
    began = time.monotonic()
    assert list(await driver.sample()) == [FIRST, THIRD]
    assert time.monotonic() - began < ANSWER_S
    assert await happened(driver) == []


async def test_wedged_device_is_called_again_and_returns_when_it_answers(
    driver: LocalDriver, fakes: Fakes
) -> None:
    fakes.tell("nvidia", "count * 3", "nvmlDeviceGetPowerUsage 1 hang")
    await driver.sample()
    for pause_s in (ASIDE_S, 2 * ASIDE_S):
        assert list(await driver.sample()) == [FIRST, THIRD]
        assert driver.vendors[0].aside["0000:02:00.0"][1] == pause_s
        await asyncio.sleep(pause_s)
    fakes.tell("nvidia", "count * 3")
    assert list(await driver.sample()) == [FIRST, SECOND, THIRD]
    assert await happened(driver) == [(r.WEDGED, "0000:02:00.0"), (r.ANSWERS, "0000:02:00.0")]


async def test_driver_that_hangs_as_a_whole_is_named(driver: LocalDriver, fakes: Fakes) -> None:
    vendor = driver.vendors[0]
    vendor.process.begin_s = ANSWER_S
    await vendor.process.close()
    fakes.tell("nvidia", "nvmlInitWithFlags * hang")
    assert len(await stale(driver)) == 3
    assert await driver.sample() == {}
    assert (await happened(driver))[0] == (r.WEDGED, "")
    assert await driver.unclean([FIRST]) == {FIRST: "its driver does not answer"}
    fakes.tell("nvidia", "count * 3")
    vendor.process.begin_s = BEGIN_S
    vendor.aside.clear()
    assert list(await driver.sample()) == [FIRST, SECOND, THIRD]


async def test_device_that_hangs_at_the_first_agents_start_is_called_twice(fakes: Fakes) -> None:
    fakes.tell("nvidia", "count * 3", "nvmlDeviceGetName 1 hang")
    driver = waiting_for(2.0)
    driver.vendors[0].process.begin_s = COLD_S
    assert [gpu.uuid for gpu in await driver.inventory()] == [FIRST, THIRD]
    assert await happened(driver) == [(r.WEDGED, "0000:02:00.0")]
    await driver.close()


async def test_a_device_that_is_lost_is_an_event_once_and_never_clean(
    driver: LocalDriver, fakes: Fakes
) -> None:
    fakes.tell("nvidia", "count * 3", "* 1 15")
    assert list(await driver.sample()) == [FIRST, THIRD]
    assert list(await driver.sample()) == [FIRST, THIRD]
    assert await happened(driver) == [(r.LOST, "0000:02:00.0")]
    assert await driver.unclean([FIRST, SECOND]) == {SECOND: "the device is lost"}
    fakes.tell("nvidia", "count * 3")
    assert list(await driver.sample()) == [FIRST, SECOND, THIRD]
    assert await happened(driver) == [(r.ANSWERS, "0000:02:00.0")]


async def test_device_lost_before_the_agents_start_is_not_in_its_inventory(
    fakes: Fakes,
) -> None:
    fakes.tell("nvidia", "count * 3", "* 0 15")
    driver = waiting_for(10.0)
    assert [gpu.uuid for gpu in await driver.inventory()] == [SECOND, THIRD]
    await driver.close()


@pytest.mark.parametrize("silences", [1, 2])
async def test_a_device_whose_calls_hang_is_reset_without_another_call(
    driver: LocalDriver,
    fakes: Fakes,
    silences: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/called\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent), prepend=os.pathsep)
    driver.vendors[0].aside_s, driver.vendors[0].process.reset_s = 60.0, COLD_S
    calls = ("nvmlDeviceGetPowerUsage", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetUUID")
    fakes.tell("nvidia", "count * 3", *(f"{call} 1 hang" for call in calls))
    for _ in range(silences):
        await driver.sample()
    assert driver.vendors[0].is_aside("0000:02:00.0") == (silences > 1)
    assert await driver.control(SECOND, r.Reset()) == Done()
    assert (tmp_path / "called").read_text() == "--gpu-reset -i 0000:02:00.0\n"


async def test_a_reset_is_not_ended_by_an_inventory_of_a_changed_bus(
    fakes: Fakes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\ntouch {tmp_path}/began\nsleep 0.5\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent), prepend=os.pathsep)
    fakes.tell("nvidia", "count * 2")
    trees.gpu(tmp_path / "sys", "0000:01:00.0")
    process = VendorProcess("nvidia", 10.0, BEGIN_S)
    driver = LocalDriver(vendors=[VendorDevices(process)], sys_root=tmp_path / "sys")
    await driver.inventory()
    reset = asyncio.ensure_future(driver.control(FIRST, r.Reset()))
    async with asyncio.timeout(10.0):
        while not (tmp_path / "began").exists():
            await asyncio.sleep(0.01)
    trees.gpu(tmp_path / "sys", "0000:02:00.0")
    await driver.inventory()
    assert await reset == Done()
    await driver.close()


async def test_hanging_command_fails_and_takes_no_device_out_of_use(
    driver: LocalDriver, fakes: Fakes
) -> None:
    fakes.tell("nvidia", "count * 3", "nvmlDeviceSetPowerManagementLimit 2 hang")
    with pytest.raises(Unavailable, match=r"nvidia 0000:03:00.0 did not answer within 0.5 s"):
        await driver.control(THIRD, r.SetPowerCap(300_000))
    assert list(await driver.sample()) == [FIRST, SECOND, THIRD] and await happened(driver) == []


async def test_a_wait_for_events_that_hangs_wedges_the_driver(
    driver: LocalDriver, fakes: Fakes
) -> None:
    driver.vendors[0].aside_s = 60.0
    fakes.tell("nvidia", "count * 3", "nvmlEventSetWait_v2 * hang")
    assert await happened(driver) == []
    assert await happened(driver) == [(r.WEDGED, "")]
    assert await driver.sample() == {}


async def test_event_loop_runs_while_a_call_hangs(driver: LocalDriver, fakes: Fakes) -> None:
    fakes.tell("nvidia", "count * 3", "nvmlDeviceGetPowerUsage * hang")
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            beats += 1
            await asyncio.sleep(0.01)

    heart = asyncio.create_task(beat())
    await driver.sample()
    heart.cancel()
    assert beats > ANSWER_S / 0.01 / 2


async def test_child_process_that_dies_is_restarted(driver: LocalDriver) -> None:
    child = driver.vendors[0].process.child
    assert child is not None
    child.kill()
    await child.wait()
    assert list(await driver.sample()) == [FIRST, SECOND, THIRD]


async def test_child_process_ends_with_its_agent_even_while_a_call_hangs(fakes: Fakes) -> None:
    script = (
        "import asyncio, os, signal\n"
        "from services.node_agent.drivers.vendor_process import VendorProcess\n"
        "from services.node_agent.drivers.readings import Ask\n"
        "async def main():\n"
        "    process = VendorProcess('nvidia', 60.0, 20.0)\n"
        "    await process.ask(Ask('list'))\n"
        "    print(process.child.pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGSTOP)\n"
        "asyncio.run(main())\n"
    )
    agent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE
    )
    assert agent.stdout is not None
    pid = int(await agent.stdout.readline())
    agent.kill()
    await agent.wait()
    async with asyncio.timeout(10):
        while is_alive(pid):
            await asyncio.sleep(0.01)


def is_alive(pid: int) -> bool:
    found = process(pid)
    return found is not None and found.state != "Z"


@pytest.mark.parametrize("said", ["not json", '{"type":"Done"}', ""])
async def test_a_malformed_answer_counts_as_no_answer_from_the_driver(said: str) -> None:
    driver = waiting_for(
        10.0, command=(sys.executable, "-c", f"input(); print('{said}')" if said else "input()")
    )
    assert list(await driver.inventory()) == []
    assert list(driver.missing) == ["nvidia"]
    assert await happened(driver) == [(r.WEDGED, "")]
