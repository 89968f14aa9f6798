"""Resident data on a whole cluster: a stand-in engine restarts faster with what the node keeps, and
wrong data is refused.
"""

import asyncio
import hashlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.chaos.cluster import Chaos, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROOT = Path(__file__).parents[2]
ENGINE = [
    sys.executable,
    str(ROOT / "examples" / "resident_engine.py"),
    "--host",
    "127.0.0.1",
    "--port",
    "{port}",
]
WAIT_S = 40.0
WEIGHTS_BYTES = 8 << 20

Model = dict[str, Any]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chaos]:
    async with running(tmp_path_factory.mktemp("resident"), nodes=1, gpus=4) as made:
        yield made


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A checkpoint of two files below a folder that every user may enter."""
    folder = tmp_path / "weights"
    (folder / "shards").mkdir(parents=True)
    (folder / "shards" / "one.bin").write_bytes(os.urandom(WEIGHTS_BYTES))
    (folder / "config.json").write_text("{}")
    (folder / "index.json").write_text(json.dumps(["shards/one.bin"]))
    for path in (folder, *folder.parents):
        if str(path).startswith("/tmp/pytest"):
            path.chmod(0o755)
    return folder


def files_in(folder: Path) -> dict[str, tuple[int, str]]:
    """Return size and SHA-256 of each file."""
    return {
        str(path.relative_to(folder)): (
            path.stat().st_size,
            hashlib.sha256(path.read_bytes()).hexdigest(),
        )
        for path in folder.glob("**/*")
        if path.is_file()
    }


def in_memory() -> list[str]:
    """Return the SHA-256 of each shard that an agent of this machine keeps in memory."""
    shards = Path("/dev/shm").glob("muster-*/*/shards/one.bin")
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in shards]


async def ask(cluster: Chaos, method: str, path: str, status: int, body: object = None) -> Any:
    got, answer = await cluster.try_once(method, path, json=body)
    assert got == status, answer
    return answer


async def deploy(cluster: Chaos, name: str, *flags: str) -> None:
    body = {"name": name, "command": [*ENGINE, *flags], "startup_timeout_s": "60s"}
    await ask(cluster, "POST", "/v1/deployments", 201, body)
    await ready(cluster, name)


async def keep(cluster: Chaos, name: str, tier: str, status: int = 201, **body: Any) -> Any:
    return await ask(cluster, "PUT", f"/v1/deployments/{name}/kept/{tier}", status, body)


async def until(found: Callable[[], Any], what: str) -> Any:
    deadline = asyncio.get_running_loop().time() + WAIT_S
    while True:
        result = await found()
        if result:
            return result
        assert asyncio.get_running_loop().time() < deadline, f"{what}: {result}"
        await asyncio.sleep(0.1)


async def ready(cluster: Chaos, name: str) -> Model:
    async def is_ready() -> Model | None:
        shown: Model = await cluster.get(f"/v1/deployments/{name}")
        return shown if shown["state"] == "ready" else None

    found: Model = await until(is_ready, f"{name} is ready")
    return found


async def entry(cluster: Chaos, name: str, tier: str, state: str) -> dict[str, Any]:
    async def in_state() -> dict[str, Any] | None:
        for kept in (await cluster.get("/v1/kept"))["kept"]:
            for each in kept["entries"]:
                if (kept["model"], kept["tier"], each["state"]) == (name, tier, state):
                    return dict(each)
        return None

    found: dict[str, Any] = await until(in_state, f"{name} {tier} is {state}")
    return found


async def restart(cluster: Chaos, name: str) -> dict[str, Any]:
    """Scale to none and back to one replica; return what the new engine says of its start."""
    await ask(cluster, "PATCH", f"/v1/deployments/{name}", 200, {"replicas": 0})

    async def gone() -> bool:
        return not (await cluster.get(f"/v1/deployments/{name}"))["replicas"]

    await until(gone, "no replica is left")
    return await begin(cluster, name)


async def begin(cluster: Chaos, name: str) -> dict[str, Any]:
    await ask(cluster, "PATCH", f"/v1/deployments/{name}", 200, {"replicas": 1})
    return await said(cluster, await ready(cluster, name))


async def said(cluster: Chaos, shown: Model) -> dict[str, Any]:
    job = shown["replicas"][0]["id"]
    async with cluster.session.get(f"/v1/jobs/{job}/output") as answer:
        line = (await answer.text()).splitlines()[0]
    found: dict[str, Any] = json.loads(line)
    return found


async def test_compile_products_of_a_finished_replica_spare_the_next_one_the_compilation(
    cluster: Chaos,
) -> None:
    await deploy(cluster, "warm", "--compile-s", "2")
    await keep(cluster, "warm", "artefact")
    first = await restart(cluster, "warm")  # the replica before did not know the folder yet
    assert first["compile_s"] >= 2
    second = await restart(cluster, "warm")
    kept = await entry(cluster, "warm", "artefact", "ready")
    assert second["compile_s"] < 1
    assert second["product"] == first["product"]
    assert kept["size_bytes"] >= 4 << 20 and kept["restore_ms"] >= 2_000
    await ask(cluster, "DELETE", "/v1/deployments/warm/kept/artefact", 204)
    assert (await restart(cluster, "warm"))["compile_s"] >= 2
    await ask(cluster, "DELETE", "/v1/deployments/warm", 202)


async def test_a_poisoned_compile_product_is_refused_and_the_replica_compiles_itself(
    cluster: Chaos,
) -> None:
    await deploy(cluster, "poison", "--compile-s", "1")
    await keep(cluster, "poison", "artefact")
    first = await restart(cluster, "poison")
    await ask(cluster, "PATCH", "/v1/deployments/poison", 200, {"replicas": 0})
    await entry(cluster, "poison", "artefact", "ready")
    (product,) = cluster.state.glob("**/artefacts/*/files/triton/kernel.bin")
    data = bytearray(product.read_bytes())
    data[1_000] ^= 1
    product.write_bytes(data)
    second = await begin(cluster, "poison")
    assert second["compile_s"] >= 1 and second["product"] == first["product"]
    kept = await entry(cluster, "poison", "artefact", "failed")
    assert "refused before use: triton/kernel.bin has the SHA-256" in kept["detail"]
    await ask(cluster, "DELETE", "/v1/deployments/poison", 202)


async def test_weights_in_memory_are_given_to_the_next_replica_and_count_in_the_ledger(
    cluster: Chaos, weights: Path
) -> None:
    await deploy(cluster, "host", "--weights", str(weights), "--disk-mib-s", "4")
    await keep(cluster, "host", "host", weights=str(weights))
    kept = await entry(cluster, "host", "host", "ready")
    assert kept["host_bytes"] == sum(size for size, _ in files_in(weights).values())
    second = await restart(cluster, "host")
    assert second["weights_bytes"] == WEIGHTS_BYTES and second["load_s"] < 1
    (node,) = (await cluster.get("/v1/nodes"))["nodes"]
    assert node["memory_bytes_kept"] == kept["host_bytes"]
    await ask(cluster, "DELETE", "/v1/deployments/host/kept/host", 204)
    third = await restart(cluster, "host")
    assert third["load_s"] >= 1.5
    await ask(cluster, "DELETE", "/v1/deployments/host", 202)


async def test_a_wrong_checkpoint_is_refused(cluster: Chaos, weights: Path) -> None:
    files = {path: digest for path, (_, digest) in files_in(weights).items()}
    await deploy(cluster, "wrong")
    shard = weights / "shards" / "one.bin"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    await keep(cluster, "wrong", "host", weights=str(weights), files=files)
    kept = await entry(cluster, "wrong", "host", "failed")
    assert "shards/one.bin has the SHA-256" in kept["detail"] and kept["host_bytes"] == 0
    data[-1] ^= 1
    shard.write_bytes(data)
    await keep(cluster, "wrong", "host", 200, weights=str(weights), files=files)
    await entry(cluster, "wrong", "host", "ready")
    await ask(cluster, "DELETE", "/v1/deployments/wrong", 202)
    await ask(cluster, "DELETE", "/v1/deployments/wrong/kept/host", 204)


async def test_weights_that_were_dropped_while_the_agent_was_away_leave_the_memory(
    cluster: Chaos, weights: Path
) -> None:
    """The agent stands still, the tier is dropped, and another agent begins."""
    await deploy(cluster, "away")
    await keep(cluster, "away", "host", weights=str(weights))
    await entry(cluster, "away", "host", "ready")
    digest = files_in(weights)["shards/one.bin"][1]

    async def is_gone() -> bool:
        return digest not in in_memory()

    assert digest in in_memory()
    agent = cluster.ticket("node-1")
    assert agent is not None
    os.kill(agent.pid, signal.SIGSTOP)
    await ask(cluster, "DELETE", "/v1/deployments/away/kept/host", 204)
    os.kill(agent.pid, signal.SIGKILL)
    await until(is_gone, "the weights are gone")
    await ask(cluster, "DELETE", "/v1/deployments/away", 202)


async def test_what_cannot_be_kept_is_refused_with_the_reason(cluster: Chaos) -> None:
    await deploy(cluster, "refused")
    answer = await keep(cluster, "refused", "attic", 422)
    assert "give one of artefact, host, gpu, standby" in answer["detail"]
    answer = await keep(cluster, "refused", "host", 422)
    assert "weights: missing" in answer["detail"]
    await keep(cluster, "nothing", "artefact", 404)
    await ask(cluster, "DELETE", "/v1/deployments/refused/kept/host", 404)
    await ask(cluster, "DELETE", "/v1/deployments/refused", 202)
