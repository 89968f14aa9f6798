"""Kept weights on a whole cluster: a node without the folder fetches them from the node that has
them in memory.
"""

import asyncio
import hashlib
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.chaos.cluster import Chaos, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROOT = Path(__file__).parents[2]
ENGINE = [sys.executable, str(ROOT / "examples" / "resident_engine.py")]
COMMAND = [*ENGINE, "--host", "127.0.0.1", "--port", "{port}"]
WAIT_S = 60.0
WEIGHTS_BYTES = 8 << 20


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chaos]:
    async with running(tmp_path_factory.mktemp("peers"), nodes=2, gpus=1) as made:
        yield made


def weights_at(folder: Path) -> str:
    """Make a checkpoint that every user may read; return the SHA-256 of its shard."""
    (folder / "shards").mkdir(parents=True)
    shard = os.urandom(WEIGHTS_BYTES)
    (folder / "shards" / "one.bin").write_bytes(shard)
    (folder / "index.json").write_text(json.dumps(["shards/one.bin"]))
    for path in (folder, *folder.parents):
        if str(path).startswith("/tmp/pytest"):
            path.chmod(0o755)
    return hashlib.sha256(shard).hexdigest()


def in_memory(node: str) -> list[str]:
    """Return the SHA-256 of each shard that agents with this name keep on this machine."""
    shards = Path("/dev/shm").glob(f"muster-{node}-*/*/shards/one.bin")
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in shards]


async def ask(cluster: Chaos, method: str, path: str, status: int, body: object = None) -> Any:
    got, answer = await cluster.try_once(method, path, json=body)
    assert got == status, answer
    return answer


async def entries(cluster: Chaos, count: int) -> list[dict[str, Any]]:
    """Wait until so many entries are ready."""
    deadline = asyncio.get_running_loop().time() + WAIT_S
    while True:
        (kept,) = (await cluster.get("/v1/kept"))["kept"]
        if [each["state"] for each in kept["entries"]].count("ready") == count:
            return list(kept["entries"])
        assert asyncio.get_running_loop().time() < deadline, kept
        await asyncio.sleep(0.1)


async def test_a_node_without_the_folder_fetches_the_weights_from_the_node_that_keeps_them(
    cluster: Chaos, tmp_path: Path
) -> None:
    folder = tmp_path / "weights"
    digest = weights_at(folder)
    body = {"name": "m", "command": COMMAND, "gpus": 1, "startup_timeout_s": "60s"}
    await ask(cluster, "POST", "/v1/deployments", 201, body)
    body = {"weights": str(folder)}
    await ask(cluster, "PUT", "/v1/deployments/m/kept/host", 201, body)
    (first,) = await entries(cluster, 1)
    shutil.rmtree(folder)
    await ask(cluster, "PATCH", "/v1/deployments/m", 200, {"replicas": 2})
    found = await entries(cluster, 2)
    (second,) = [each for each in found if each["node_id"] != first["node_id"]]
    assert second["detail"] == f"from node {first['node_id']} over tcp"
    assert (second["content"], second["host_bytes"]) == (first["content"], first["host_bytes"])
    assert digest in in_memory(second["node_id"])
    history = await cluster.get("/v1/events", kind="kept.observed", limit="100")
    states = [
        (each["fact"]["state"], each["fact"]["detail"])
        for each in history["events"]
        if each["fact"].get("node_id") == second["node_id"]
    ]
    assert [state for state, _ in states] == ["measured", "filling", "ready"]
    assert f"from node {first['node_id']}, 0 of 2 files" in states[1][1]
    assert "cannot be read" in states[0][1]
