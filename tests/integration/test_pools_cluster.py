"""A whole embedded cluster: a job with --pool imports muster.memory, allocates, is refused beyond
its pool, and its bytes show in `muster memory`, in the metrics and to its tenant only.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.chaos.cluster import AGAIN_S, Chaos, running
from tests.integration.test_files_cluster import shell_of

WAIT_S: Final = 90.0
MIB: Final = 1 << 20
PROGRAM: Final = """
import os, time
from muster.memory import HOST, DeviceError, job_pool

pool = job_pool(0, purpose="weights")
block = pool.allocate(48 << 20)
try:
    job_pool(0, purpose="more").allocate(32 << 20)
except DeviceError as error:
    print("refused:", error, flush=True)
host = job_pool(HOST, purpose="staging")
host.allocate(4 << 20)
print("holds", pool.stats().used, flush=True)
while not os.path.exists("go"):
    time.sleep(0.05)
pool.free(block)
pool.close()
host.close()
print("closed", flush=True)
"""


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Chaos]:
    async with running(tmp_path, nodes=1, gpus=2) as found:
        yield found


async def pools(cluster: Chaos) -> list[dict[str, Any]]:
    nodes = (await cluster.get("/v1/memory"))["nodes"]
    return [pool for node in nodes for pool in node["pools"]]


async def until_granted(cluster: Chaos, wanted: dict[str, int]) -> list[dict[str, Any]]:
    """The pools once these bytes are granted, by device kind."""
    async with asyncio.timeout(WAIT_S):
        while True:
            found = await pools(cluster)
            granted = {
                "host" if pool["device"] == "host" else "gpu": pool["granted_bytes"]
                for pool in found
            }
            if granted == wanted:
                return found
            await asyncio.sleep(AGAIN_S)


@pytest.mark.timeout(300)
async def test_a_job_allocates_from_its_pool_and_the_cluster_shows_it(
    cluster: Chaos, tmp_path: Path
) -> None:
    shell = shell_of(cluster, tmp_path)
    work = tmp_path / "work"
    work.mkdir()
    (work / "program.py").write_text(PROGRAM)
    out, _ = await shell.run(
        *("submit", "--pool", "64M", "--host-pool", "8M", "-C", str(work), "-J", "pooled", "--"),
        *(sys.executable, "program.py"),
    )
    job_id = out.split()[0]
    found = await until_granted(cluster, {"gpu": 48 * MIB, "host": 4 * MIB})
    assert {pool["job_id"] for pool in found} == {job_id}
    assert {pool["pool_bytes"] for pool in found} == {64 * MIB, 8 * MIB}
    assert [pool["purposes"] for pool in found] == [{"weights": 48 * MIB}, {"staging": 4 * MIB}]
    out, _ = await shell.run("memory", "pooled", "-o", "json")
    (node,) = json.loads(out)
    assert [device["granted_bytes"] for device in node["devices"] if device["pool_bytes"]] == [
        48 * MIB,
        4 * MIB,
    ]
    out, _ = await shell.run("memory", node["node_id"])
    assert "weights 48.0 MiB" in out and "staging 4.0 MiB" in out and job_id in out
    (work / "go").touch()
    out, _ = await shell.run("logs", "-f", job_id)
    assert "refused:" in out and "has left: 67108864 of 67108864 bytes are granted" in out
    assert out.endswith("closed\n")
    history = await cluster.get(f"/v1/jobs/{job_id}/history")
    assert "pools" in json.dumps(history) and "returned" in json.dumps(history)
    assert await pools(cluster) == []


@pytest.mark.timeout(300)
async def test_a_pool_that_no_gpu_could_contain_is_refused_at_once(
    cluster: Chaos, tmp_path: Path
) -> None:
    shell = shell_of(cluster, tmp_path)
    _, said = await shell.run("submit", "--pool", "900G", "--", "true", code=1)
    assert "fit on no GPU: the largest has" in said
