"""The devices of this machine by this project's own driver: found, sampled, told."""

import asyncio
import shutil
import subprocess
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from libs.common.devices import device_controls as c
from libs.common.messages import ControlOrder
from services.node_agent.devices.device_commands import carry_out
from services.node_agent.drivers.local import LocalDriver
from services.node_agent.drivers.readings import Lacking, Sample
from services.node_agent.drivers.vendors.nvidia import SELDOM
from tests.gpu.conftest import Machine
from tests.gpu.said import say
from tests.gpu.test_jobs import PROGRAM

GIB = 1 << 30
SAMPLES = 50
SETTLES_S = 5.0
# A program computes for so long, and certainly after the first time.
COMPUTES_S = 8.0
STARTS_S = 4.0
TEXT: Any = {"capture_output": True, "text": True, "check": True}


@pytest.fixture
async def driver(machine: Machine) -> AsyncIterator[LocalDriver]:
    made = LocalDriver()
    await made.inventory()
    yield made
    await made.close()


async def test_the_inventory_agrees_with_nvidia_smi(machine: Machine) -> None:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        pytest.skip("nvidia-smi is not on PATH")
    line = [tool, "--query-gpu=uuid,name,memory.total,pci.bus_id", "--format=csv,noheader,nounits"]
    rows = [
        row.split(", ")
        for row in (await asyncio.to_thread(subprocess.run, line, **TEXT)).stdout.splitlines()
    ]
    assert [(gpu.uuid, gpu.model) for gpu in machine.gpus] == [
        (uuid, name) for uuid, name, _, _ in rows
    ]
    for gpu, (_, _, mib, address) in zip(machine.gpus, rows, strict=True):
        assert abs(gpu.memory_bytes / (1 << 20) - int(mib)) <= 1_024
        assert gpu.pci_bus == address.lower()[-12:] and any(gpu.compute_capability)


async def test_how_long_discovery_takes(machine: Machine) -> None:
    took = []
    for _ in range(3):
        driver, began = LocalDriver(), time.monotonic()
        await driver.inventory()
        took.append(time.monotonic() - began)
        await driver.close()
    say("gpu_discovery_s", min(took), "s", len(took))


async def test_samples_are_current_and_plausible(driver: LocalDriver) -> None:
    took, lacking = [], {}
    for _ in range(SAMPLES):
        began, before_ns = time.perf_counter(), time.time_ns()
        samples = await driver.sample()
        took.append((time.perf_counter() - began) * 1_000)
        for one in samples.values():
            assert before_ns <= one.at_ns <= time.time_ns()
            lacking = {
                name: value.why
                for name in one.__struct_fields__
                if isinstance(value := getattr(one, name), Lacking)
            }
            _can_be(one)
    say("gpu_sample_p50_ms", sorted(took)[len(took) // 2], "ms", len(took), lacking=sorted(lacking))
    assert await driver.events() == []


async def test_counters_show_a_computing_device(driver: LocalDriver, machine: Machine) -> None:
    uuid = machine.gpus[0].uuid
    line = (*PROGRAM, "work", str(COMPUTES_S))
    child = await asyncio.create_subprocess_exec(*line, stdout=asyncio.subprocess.DEVNULL)
    await asyncio.sleep(STARTS_S)
    for _ in range(2 * SELDOM):  # the counters are means between two samples that read them
        await driver.sample()
        await asyncio.sleep(0.1)
    one = (await driver.sample())[uuid]
    assert await child.wait() == 0
    active, bandwidth = one.sm_active_permille, one.memory_bandwidth_permille
    if isinstance(active, Lacking) or isinstance(bandwidth, Lacking):
        pytest.skip(str(active))
    # The program fills memory and does nothing else.
    assert active > 500 and bandwidth > 300 and one.tensor_active_permille == 0
    busy = {name: getattr(one, name) for name in one.__struct_fields__ if "permille" in name}
    say("gpu_counters", len(busy), "counters", 1, **busy)


def _can_be(one: Sample) -> None:
    assert isinstance(one.memory_used_bytes, int) and isinstance(one.memory_total_bytes, int)
    assert 0 <= one.memory_used_bytes < one.memory_total_bytes
    for value, low, high in (
        (one.temperature_c, 5, 120),
        (one.power_mw, 1_000, 2_000_000),
        (one.busy_percent, 0, 100),
    ):
        assert isinstance(value, Lacking) or low <= value <= high


async def told(driver: LocalDriver, machine: Machine, control: str, value: str) -> None:
    """Skips where it is lacking or not permitted, with what the driver says."""
    found = await carry_out(driver, ControlOrder(machine.gpus[0].uuid, control, value, 1))
    if found.outcome in (c.LACKING, c.DENIED):
        pytest.skip(f"{control}: {found.outcome}: {found.detail}")
    assert (found.outcome, found.detail) == (c.DONE, "")


async def test_the_power_limit_is_set_and_given_back(driver: LocalDriver, machine: Machine) -> None:
    gpu = machine.gpus[0]
    before = (await driver.sample())[gpu.uuid].power_cap_mw
    low_w = -(-gpu.power_mw[0] // c.MW)
    if not low_w or isinstance(before, Lacking) or before <= low_w * c.MW:
        pytest.skip(f"its power limit has no room: {before} of {gpu.power_mw}")
    value = c.read(c.POWER, str(low_w), gpu)
    try:
        await told(driver, machine, c.POWER, value)
        assert (await driver.sample())[gpu.uuid].power_cap_mw == low_w * c.MW
    finally:
        await carry_out(driver, ControlOrder(gpu.uuid, c.POWER, str(before // c.MW), 2))
    assert (await driver.sample())[gpu.uuid].power_cap_mw == before


async def test_the_clocks_are_locked_and_let_go(driver: LocalDriver, machine: Machine) -> None:
    gpu = machine.gpus[0]
    most = gpu.clocks_mhz[1]
    if not most:
        pytest.skip("the driver does not say how fast it can be")
    try:
        await told(driver, machine, c.CLOCKS, f"{most // 2}-{most // 2}")
        deadline = time.monotonic() + SETTLES_S
        while (
            now := (await driver.sample())[gpu.uuid].clock_mhz
        ) != most // 2 and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
        assert isinstance(now, int) and now <= most // 2 + 15  # a card knows steps of 15 MHz
    finally:
        await carry_out(driver, ControlOrder(gpu.uuid, c.CLOCKS, "", 2))
