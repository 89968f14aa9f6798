"""Weights that stay on devices between the replicas of a model (tier gpu), on a whole cluster with
simulated devices and a stand-in engine that speaks the GMS protocol.
"""

import asyncio
import hashlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from services.node_agent.machine import processes
from services.node_agent.memory.gms.resident_weights import socket_name
from tests.chaos.cluster import Chaos, running
from tests.gms_client import Gms
from tests.gms_replica import read
from tests.integration.test_resident_data import ask, entry, keep, ready, said, until, weights
from tests.memory_world import MIB, memory_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROOT = Path(__file__).parents[2]
ENGINE = [sys.executable, "-m", "tests.gms_replica", "--host", "127.0.0.1", "--port", "{port}"]
SIZE = 64 * MIB
# A job of the same user, which is another attempt.
FOREIGN = """
from tests.gms_client import Gms
try:
    Gms(path).lock("ro")
except RuntimeError as error:
    assert "belongs to no attempt" in str(error)
else:
    raise SystemExit("it got a lock")
"""

__all__ = ["weights"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chaos]:
    async with running(tmp_path_factory.mktemp("gpu"), nodes=1, gpus=4) as made:
        yield made
    for pid in servers(made):  # none, unless a test has failed
        os.kill(pid, signal.SIGKILL)


def servers(cluster: Chaos) -> list[int]:
    """Return the weight servers of this cluster."""
    found = []
    for pid in processes.all_pids():
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if "services.node_agent.memory.gms" in line and str(cluster.state) in " ".join(line):
            found.append(pid)
    return found


def bytes_held(cluster: Chaos) -> int:
    return sum(sum(memory_of(pid).values()) for pid in servers(cluster))


async def until_held(cluster: Chaos, size: int) -> None:
    async def holds() -> bool:
        return await asyncio.to_thread(bytes_held, cluster) == size

    await until(holds, f"{size} bytes are held")


async def deployed(cluster: Chaos, name: str, weights: Path, **fields: Any) -> None:
    """Deploy a model without replicas, that keeps its weights on the devices."""
    body = {
        "name": name,
        "command": [*ENGINE, "--weights", str(weights)],
        "env": {"PYTHONPATH": str(ROOT)},
        "replicas": 0,
        "startup_timeout_s": "60s",
        **fields,
    }
    await ask(cluster, "POST", "/v1/deployments", 201, body)
    await keep(cluster, name, "gpu", weights=str(weights), size_bytes=SIZE)


async def deploy(cluster: Chaos, name: str, weights: Path) -> dict[str, Any]:
    """Deploy a model with one replica; return what that says."""
    await deployed(cluster, name, weights)
    return await scale(cluster, name, 1)


async def scale(cluster: Chaos, name: str, replicas: int) -> dict[str, Any]:
    await ask(cluster, "PATCH", f"/v1/deployments/{name}", 200, {"replicas": replicas})
    return await said(cluster, await ready(cluster, name)) if replicas else {}


async def none_left(cluster: Chaos, name: str) -> None:
    async def gone() -> bool:
        return not (await cluster.get(f"/v1/deployments/{name}"))["replicas"]

    await until(gone, "no replica is left")


async def replaced(cluster: Chaos, name: str, before: dict[str, Any]) -> dict[str, Any]:
    """Kill the engine; return what the next replica says."""
    os.kill(before["pid"], signal.SIGKILL)

    async def another() -> dict[str, Any] | None:
        shown = await cluster.get(f"/v1/deployments/{name}")
        if shown["state"] != "ready":
            return None
        found = await said(cluster, shown)
        return found if found.get("pid", before["pid"]) != before["pid"] else None

    found: dict[str, Any] = await until(another, f"{name} has another replica")
    return found


async def job(cluster: Chaos, program: str, gpus: int) -> dict[str, Any]:
    """Run a job with this program to its end."""
    command, env = [sys.executable, "-c", program], {"PYTHONPATH": str(ROOT)}
    body = {"command": command, "env": env, "gpus": gpus}
    made = await ask(cluster, "POST", "/v1/jobs", 201, body)

    async def over() -> Any:
        shown = await cluster.get(f"/v1/jobs/{made['id']}")
        return shown if shown["ended_at"] else None

    found: dict[str, Any] = await until(over, "the job has ended")
    return found


async def end(cluster: Chaos, name: str) -> None:
    await ask(cluster, "DELETE", f"/v1/deployments/{name}", 202)
    kept = (await cluster.get("/v1/kept"))["kept"]
    for tier in [each["tier"] for each in kept if each["model"] == name]:
        await ask(cluster, "DELETE", f"/v1/deployments/{name}/kept/{tier}", 204)
    await until_held(cluster, 0)


async def test_the_next_replica_maps_what_the_killed_one_has_loaded(
    cluster: Chaos, weights: Path
) -> None:
    digest, size = hashlib.sha256(read(str(weights))).hexdigest(), len(read(str(weights)))
    first = await deploy(cluster, "next", weights)
    assert (first["shared"], first["loaded"], first["digests"]) == (True, True, [digest])
    kept = await entry(cluster, "next", "gpu", "ready")
    held = -(-size // (2 * MIB)) * 2 * MIB
    assert kept["gpu_bytes"] == {first["gpus"]: SIZE}
    assert (kept["size_bytes"], kept["restore_ms"] > 0) == (held, True)
    second = await replaced(cluster, "next", first)
    assert (second["shared"], second["loaded"], second["digests"]) == (True, False, [digest])
    assert second["gpus"] == first["gpus"]
    await until_held(cluster, held)
    path = f"{second['sockets']}/{socket_name(second['gpus'], 'weights')}"
    with pytest.raises(RuntimeError, match="belongs to no attempt"):
        Gms(path).lock("ro")
    assert (await job(cluster, f"path = {path!r}{FOREIGN}", 1))["state"] == "completed"
    await end(cluster, "next")


async def test_a_job_that_needs_the_device_gets_its_memory_and_a_drop_frees_it(
    cluster: Chaos, weights: Path
) -> None:
    first = await deploy(cluster, "gives", weights)
    await scale(cluster, "gives", 0)
    await none_left(cluster, "gives")
    assert await asyncio.to_thread(bytes_held, cluster) > 0
    again = await scale(cluster, "gives", 1)
    assert (again["loaded"], again["gpus"]) == (False, first["gpus"])
    await scale(cluster, "gives", 0)
    await none_left(cluster, "gives")
    (server,) = await asyncio.to_thread(servers, cluster)
    look = f"from tests.memory_world import memory_of; assert not memory_of({server})"
    assert (await job(cluster, look, 4))["state"] == "completed"
    events = (await cluster.get("/v1/events", kind="kept.evicted"))["events"]
    assert [each["fact"]["reason"] for each in events][-1:] == ["a job needs the device"]
    await until_held(cluster, 0)
    third = await scale(cluster, "gives", 1)
    assert (third["shared"], third["loaded"]) == (True, True)
    await end(cluster, "gives")


async def test_a_wrong_checkpoint_is_refused_and_its_replica_loads_for_itself(
    cluster: Chaos, weights: Path
) -> None:
    first = await deploy(cluster, "wrong", weights)
    await entry(cluster, "wrong", "gpu", "ready")
    shard = weights / "shards" / "one.bin"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    second = await replaced(cluster, "wrong", first)
    assert second["shared"] is False and second["digests"] != first["digests"]
    kept = await entry(cluster, "wrong", "gpu", "failed")
    assert "shards/one.bin has the SHA-256" in kept["detail"] and kept["gpu_bytes"] == {}
    await until_held(cluster, 0)
    await end(cluster, "wrong")


async def test_weights_survive_the_agent_and_the_weight_server(
    cluster: Chaos, weights: Path
) -> None:
    first = await deploy(cluster, "kills", weights)
    await entry(cluster, "kills", "gpu", "ready")
    held = await asyncio.to_thread(bytes_held, cluster)
    await agent_replaced(cluster)
    second = await replaced(cluster, "kills", first)
    assert (second["loaded"], second["gpus"]) == (False, first["gpus"])
    (server,) = await asyncio.to_thread(servers, cluster)
    os.kill(server, signal.SIGKILL)
    await until_held(cluster, held)
    third = await replaced(cluster, "kills", second)
    assert (third["loaded"], third["digests"]) == (False, first["digests"])
    (server,) = await asyncio.to_thread(servers, cluster)
    await agent_replaced(cluster, server)
    fourth = await replaced(cluster, "kills", third)
    assert (fourth["shared"], fourth["loaded"]) == (True, True)  # both at once lose the weights
    await entry(cluster, "kills", "gpu", "ready")
    await end(cluster, "kills")


async def test_weights_that_were_dropped_while_the_agent_was_away_are_freed(
    cluster: Chaos, weights: Path
) -> None:
    await deploy(cluster, "away", weights)
    await scale(cluster, "away", 0)
    await none_left(cluster, "away")
    agent = cluster.ticket("node-1")
    assert agent is not None and await asyncio.to_thread(bytes_held, cluster) > 0
    os.kill(agent.pid, signal.SIGSTOP)
    await ask(cluster, "DELETE", "/v1/deployments/away/kept/gpu", 204)
    await agent_replaced(cluster)
    await end(cluster, "away")


async def agent_replaced(cluster: Chaos, *others: int) -> None:
    """Kill the agent, and these processes just before it."""
    agent = cluster.ticket("node-1")
    assert agent is not None
    os.kill(agent.pid, signal.SIGSTOP)  # so that it does not notice the death of the others
    for pid in (*others, agent.pid):
        os.kill(pid, signal.SIGKILL)

    async def restarted() -> bool:
        now = cluster.ticket("node-1")
        return now is not None and now.pid != agent.pid

    await until(restarted, "the agent is restarted")


async def test_a_replica_with_several_devices_has_weights_on_each_and_a_standby_shares_them(
    cluster: Chaos, weights: Path
) -> None:
    await deployed(cluster, "two", weights, gpus=2)
    await keep(cluster, "two", "standby", size_bytes=SIZE)
    first = await scale(cluster, "two", 1)
    assert first["loaded"] and len(first["digests"]) == 2
    kept = await entry(cluster, "two", "gpu", "ready")
    assert len(kept["gpu_bytes"]) == 2
    await entry(cluster, "two", "standby", "ready")
    job = (await cluster.get("/v1/deployments/two"))["replicas"][0]["id"]
    async with cluster.session.get(f"/v1/jobs/{job}/output") as answer:
        text = await answer.text()
    assert text.count('"loaded": true') == 1 and text.count('"loaded": false') == 1
    await end(cluster, "two")
