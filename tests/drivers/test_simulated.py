"""Simulated devices: their samples follow the processes that run there, and are marked as
simulated.
"""

import asyncio
import os
import signal
import sys
import time

from libs.common.model import GpuId
from services.node_agent.drivers import readings as r
from services.node_agent.drivers.readings import Done, Lacking
from services.node_agent.drivers.simulated import SimulatedDriver, Work

FIRST, SECOND = GpuId("GPU-n-0"), GpuId("GPU-n-1")
SPIN = (
    "import subprocess, sys; subprocess.run([sys.executable, '-c', 'x = bytearray(64 << "
    "20)\\nwhile True: pass'])"
)


async def test_a_device_is_as_busy_as_the_processes_of_its_jobs() -> None:
    driver = SimulatedDriver("n", 2)
    job = await asyncio.create_subprocess_exec(sys.executable, "-c", SPIN, start_new_session=True)
    driver.running = lambda: {FIRST: [Work(job.pid)]}
    try:
        async with asyncio.timeout(30):
            while True:
                samples = await driver.sample()
                busy, memory, idle = (
                    samples[FIRST].busy_percent,
                    samples[FIRST].memory_used_bytes,
                    samples[SECOND],
                )
                assert isinstance(busy, int) and isinstance(memory, int)
                if busy > 10 and memory > 64 << 20:
                    break
                await asyncio.sleep(0.2)
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        await job.wait()
    assert samples[FIRST].simulated and time.time_ns() - samples[FIRST].at_ns < 10**10
    assert (idle.busy_percent, idle.memory_used_bytes, idle.processes) == (0, 0, ())
    assert isinstance(samples[FIRST].processes, tuple) and len(samples[FIRST].processes) == 2


async def test_device_is_as_busy_as_its_jobs_report_and_sharing_jobs_add_up() -> None:
    driver, said = SimulatedDriver("n", 2), {1: 0.0, 2: 0.0}
    ours, other = os.getpid(), os.getppid()
    driver.running = lambda: {
        FIRST: [Work(ours, said[1])],
        SECOND: [Work(ours, said[1]), Work(other, said[2])],
    }

    async def sampled(one_s: float, two_s: float) -> list[r.Reading]:
        said[1], said[2] = said[1] + one_s, said[2] + two_s
        driver.seen_ns = time.monotonic_ns() - 10**9  # the last samples were a second ago
        return [sample.busy_percent for sample in (await driver.sample()).values()]

    await sampled(100, 100)
    assert await sampled(0.25, 0.5) == [25, 75]
    assert await sampled(0.75, 0.5) == [75, 100]
    assert await sampled(0, 0) == [0, 0]
    assert await sampled(-50, 0) == [0, 0]


async def test_first_sample_is_not_busy() -> None:
    driver = SimulatedDriver("n", 1)
    driver.running = lambda: {FIRST: [Work(os.getpid(), 5.0)]}
    assert (await driver.sample())[FIRST].busy_percent == 0


async def test_unreported_readings_are_lacking_and_power_follows_utilisation() -> None:
    driver = SimulatedDriver("n", 1)
    driver.running = lambda: {FIRST: [Work(os.getpid(), time.monotonic())]}
    idle = (await driver.sample())[FIRST]
    assert await driver.control(FIRST, r.SetPowerCap(500_000)) == Done()
    await asyncio.sleep(0.05)
    busy = (await driver.sample())[FIRST]
    assert (
        isinstance(idle.temperature_c, Lacking)
        and isinstance(idle.power_mw, int)
        and isinstance(busy.power_mw, int)
    )
    assert idle.power_mw == 70_000 < busy.power_mw <= 500_000
    assert await driver.control(FIRST, r.SetEcc(True)) == Lacking("a simulated device has none")
    assert await driver.events() == []
    await driver.close()


async def test_event_can_be_played_and_a_reset_is_reported_as_simulated() -> None:
    driver = SimulatedDriver("n", 1)
    assert driver.hears("nvidia 0000:01:00.0 xid 79 fell off the bus")
    assert not driver.hears("nvidia 0000:01:00.0 xid") and not driver.hears(
        "nvidia 0000:01:00.0 xid many"
    )
    (event,) = await driver.events()
    assert (event.vendor, event.pci_bus, event.kind, event.number, event.text) == (
        "nvidia",
        "0000:01:00.0",
        "xid",
        79,
        "fell off the bus",
    )
    assert await driver.events() == []
    assert await driver.control(FIRST, r.Reset()) == Done(note="simulated: nothing was reset")
    assert driver.version_of(FIRST) == ""


async def test_readings_of_a_device_can_be_played() -> None:
    driver = SimulatedDriver("n", 2)
    assert driver.hears("simulated 0000:01:00.0 reading 91 temperature_c") and not driver.hears(
        "simulated 0000:01:00.0 reading 9 busy_percent"
    )
    hot, other = (await driver.sample()).values()
    assert (hot.temperature_c, hot.busy_percent) == (91, 0) and isinstance(
        other.temperature_c, Lacking
    )
    assert await driver.events() == []


async def test_ended_processes_do_not_count() -> None:
    driver = SimulatedDriver("n", 1)
    driver.running = lambda: {FIRST: [Work(2**22 + 1), Work(2**22 + 2, 7.0)]}
    for _ in range(2):
        sample = (await driver.sample())[FIRST]
        assert (sample.busy_percent, sample.processes) == (0, ())
