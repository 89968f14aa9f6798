"""Devices in name only: their samples are of the processes that run there, and say so."""

import asyncio
import os
import signal
import sys
import time

from libs.common.model import GpuId
from services.node_agent.drivers import readings as r
from services.node_agent.drivers.readings import Lacking
from services.node_agent.drivers.simulated import SimulatedDriver

FIRST, SECOND = GpuId("GPU-n-0"), GpuId("GPU-n-1")
SPIN = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'x = bytearray(64 << 20)\\nwhile True: pass'])"


async def test_a_device_is_as_busy_as_the_processes_of_its_jobs() -> None:
    driver = SimulatedDriver("n", 2)
    job = await asyncio.create_subprocess_exec(sys.executable, "-c", SPIN, start_new_session=True)
    driver.running = lambda: {FIRST: [job.pid]}
    try:
        async with asyncio.timeout(30):
            while True:
                samples = await driver.sample()
                busy, memory, idle = samples[FIRST].busy_percent, samples[FIRST].memory_used_bytes, samples[SECOND]
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


async def test_what_no_process_tells_is_lacking_and_nothing_can_be_set() -> None:
    driver = SimulatedDriver("n", 1)
    sample = (await driver.sample())[FIRST]
    assert isinstance(sample.power_mw, Lacking) and isinstance(sample.temperature_c, Lacking)
    assert await driver.control(FIRST, r.SetPowerCap(1)) == Lacking("a simulated device has none")
    assert await driver.events() == ()
    await driver.close()


async def test_processes_that_are_gone_count_for_nothing() -> None:
    driver = SimulatedDriver("n", 1)
    driver.running = lambda: {FIRST: [2**22 + 1]}
    for _ in range(2):
        sample = (await driver.sample())[FIRST]
        assert (sample.busy_percent, sample.processes) == (0, ())
