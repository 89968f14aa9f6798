"""A whole cluster on simulated cards: a job on an instance, and a card whose MIG mode is changed
while a job runs beside it.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.chaos.cluster import Chaos, running
from tests.integration.test_files_cluster import shell_of
from tests.integration.test_preemption_cluster import until

FIRST, SECOND = "GPU-node-1-0", "GPU-node-1-1"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Chaos]:
    async with running(tmp_path, nodes=1, gpus=2) as found:
        yield found


async def test_a_mode_changes_what_can_be_placed_and_no_job_beside_it_hears_of_it(
    cluster: Chaos, tmp_path: Path
) -> None:
    shell = shell_of(cluster, tmp_path)
    await shell.run("submit", "-J", "beside", "--gpus", "1", "--", "sleep", "300")
    await until(cluster, "beside", state="running")
    free = SECOND if await holds(cluster, FIRST) else FIRST
    out, _ = await shell.run(
        "run", "--mig", "3g.40gb", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES"
    )
    assert out.startswith("MIG-node-1-")
    assert await shell.run("gpu", "mig", "on", "--gpu-id", free) == (
        f"GPU {free}: mig on: done\n",
        "",
    )
    assert await shell.run("gpu", "mig", "off", "--gpu-id", free) == (
        f"GPU {free}: mig off: done\n",
        "",
    )
    await shell.run("submit", "-J", "part", "--mig", "3g.40gb", "--", "true")
    await until(cluster, "part", state="queued")
    _, err = await shell.run(
        "gpu", "mig", "on", "--gpu-id", FIRST if free == SECOND else SECOND, code=1
    )
    assert "mig needs a free device" in err
    await shell.run("gpu", "mig", "default", "--gpu-id", free)
    assert await shell.run("gpu", "mig", "on", "--gpu-id", free) == (
        f"GPU {free}: mig on: done\n",
        "",
    )
    await until(cluster, "part", state="completed")
    assert (await until(cluster, "beside", state="running"))["attempt"] == 1


async def holds(cluster: Chaos, uuid: str) -> bool:
    return bool((await cluster.get(f"/v1/gpus/{uuid}"))["holders"])
