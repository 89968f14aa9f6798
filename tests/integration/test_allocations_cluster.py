"""A whole embedded cluster: devices held for a person, entered, extended, warned of, and given back
by whichever scheduler lives then.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.chaos.cluster import AGAIN_S, Chaos, running
from tests.integration.test_files_cluster import shell_of

WAIT_S: Final = 60.0


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Chaos]:
    async with running(tmp_path, nodes=1, gpus=4) as found:
        yield found


async def until(cluster: Chaos, job_id: str, **wanted: Any) -> dict[str, Any]:
    """The allocation, once it shows what is wanted."""
    async with asyncio.timeout(WAIT_S):
        while True:
            found: dict[str, Any] = await cluster.get(f"/v1/allocations/{job_id}")
            if wanted.items() <= found.items():
                return found
            await asyncio.sleep(AGAIN_S)


def kill_scheduler(cluster: Chaos) -> None:
    found = cluster.ticket("scheduler")
    assert found is not None, "no scheduler lives"
    os.kill(found.pid, signal.SIGKILL)


@pytest.mark.timeout(180)
async def test_devices_are_held_used_and_extended_and_are_free_when_the_time_is_over(
    cluster: Chaos, tmp_path: Path
) -> None:
    shell = shell_of(cluster, tmp_path)
    out, _ = await shell.run(
        "alloc",
        "--gpus",
        "2",
        "--expires",
        "12s",
        "--warn",
        "4s",
        "--name",
        "desk",
        "--label",
        "team=a",
    )
    job_id = out.splitlines()[0]
    held = await until(cluster, job_id, state="running")
    uuids = ",".join(gpu["uuid"] for gpu in held["nodes"][0]["gpus"])
    assert (
        held["nodes"][0]["env"]["CUDA_VISIBLE_DEVICES"] == uuids
        and f"CUDA_VISIBLE_DEVICES={uuids}" in out
    )
    out, _ = await shell.run("exec", "desk", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    assert out.strip() == uuids
    assert len((await cluster.get("/v1/allocations", kind="allocation"))["allocations"]) == 2
    (stock,) = (await cluster.get("/v1/inventory"))["nodes"]
    assert sorted(free for _, _, free in stock["gpus"]) == [0, 0, 100, 100]
    out, _ = await shell.run("extend", "desk", "--by", "2s")
    assert out.startswith(f"{job_id} held until")
    kill_scheduler(cluster)
    longer = await until(cluster, job_id, warned=True)
    assert longer["expires_at"] > held["expires_at"]
    over = await until(cluster, job_id, state="completed")
    assert (over["reason"], 13.9 < over["statistics"]["held_s"] < 30) == ("expired", True)
    assert (await cluster.get("/v1/allocations"))["allocations"] == []
    kinds = [
        fact["kind"]
        for fact in await cluster.history(job_id)
        if fact["kind"].startswith("allocation.")
    ]
    assert kinds == ["allocation.extended", "allocation.warned"]


async def test_released_allocation_frees_its_devices_at_once_and_completes(
    cluster: Chaos, tmp_path: Path
) -> None:
    shell = shell_of(cluster, tmp_path)
    out, _ = await shell.run("alloc", "--gpus", "4", "-o", "env")
    assert out.startswith("export CUDA_VISIBLE_DEVICES=")
    (job,) = (await cluster.get("/v1/jobs", kind="allocation"))["jobs"]
    await shell.run("release", job["id"])
    over = await until(cluster, job["id"], state="completed")
    assert (
        over["reason"] == "released" and (await cluster.get("/v1/allocations"))["allocations"] == []
    )
