"""A whole cluster: what an operator sets on a device it has, under the next agent too; a reset
waits for the job and puts it back.
"""

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from libs.embedded import servers
from tests.chaos.cluster import Chaos, running
from tests.integration.test_files_cluster import shell_of
from tests.integration.test_preemption_cluster import WAIT_S, until

FIRST = "GPU-node-1-0"
PORT = servers.free_port_run(1)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Chaos]:
    async with running(tmp_path, nodes=1, gpus=2, MUSTER_METRICS_PORT=str(PORT)) as found:
        yield found


async def sampled(name: str) -> list[float]:
    """Return a metric's values from the node's agent, one per device; maybe none."""
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{PORT}/metrics") as answer,
        ):
            return [
                float(value)
                for value in re.findall(rf"^{name}{{.*}} (\S+)$", await answer.text(), re.MULTILINE)
            ]
    except aiohttp.ClientError:
        return []


async def test_control_survives_the_agent_and_a_reset_until_it_is_removed(
    cluster: Chaos, tmp_path: Path
) -> None:
    shell = shell_of(cluster, tmp_path)
    out, _ = await shell.run("gpu", "power", "300", "--node", "node-1")
    assert sorted(out.splitlines()) == [
        f"GPU GPU-node-1-{number}: power 300: done" for number in (0, 1)
    ]
    await shell.run("gpu", "clocks", "1200-1500", "--gpu-id", FIRST)
    assert (
        await sampled("muster_gpu_power_cap_watts"),
        await sampled("muster_gpu_clock_hertz"),
    ) == ([300, 300], [1.5e9, 1.98e9])
    _, err = await shell.run("gpu", "power", "9000", "--gpu-id", FIRST, code=1)
    assert "accepts 200 to 700 W" in err
    out, _ = await shell.run("gpu", "ecc", "on", "--gpu-id", FIRST)
    assert out == f"GPU {FIRST}: ecc on: lacking (a simulated device has none), default in force\n"

    ticket = cluster.ticket("node-1")
    assert ticket is not None
    os.kill(ticket.pid, signal.SIGKILL)
    async with asyncio.timeout(WAIT_S):
        while await sampled("muster_gpu_power_cap_watts") != [300, 300] or await sampled(
            "muster_gpu_clock_hertz"
        ) != [1.5e9, 1.98e9]:
            await asyncio.sleep(0.1)

    await shell.run("submit", "-J", "busy", "--gpus", "2", "--", "sleep", "4")
    await until(cluster, "busy", state="running")
    _, err = await shell.run("gpu", "reset", "--gpu-id", FIRST, code=1)
    assert "reset needs a free device" in err
    await shell.run("drain", "--gpu-id", FIRST)
    out, _ = await shell.run("gpu", "reset", "--gpu-id", FIRST, "--timeout", "30s")
    assert out == f"GPU {FIRST}: reset: done\n"
    gpu = await cluster.get(f"/v1/gpus/{FIRST}")
    assert (
        (await until(cluster, "busy", state="completed"))["attempt"],
        gpu["health"],
        gpu["service"],
    ) == (1, "healthy", "draining")
    assert await sampled("muster_gpu_clock_hertz") == [1.5e9, 1.98e9]
    await shell.run("gpu", "power", "--default", "--node", "node-1")
    assert await sampled("muster_gpu_power_cap_watts") == [700, 700]
    shown, _ = await shell.run("gpus", "-o", "wide")
    assert "clocks 1200-1500" in shown and "power" not in shown
