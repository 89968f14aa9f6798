"""Models on a whole embedded cluster: real processes that speak the OpenAI protocol, killed,
exchanged, crashing, slow.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tests.chaos.cluster import Chaos, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROOT = Path(__file__).parents[2]
SERVER = [
    sys.executable,
    str(ROOT / "examples" / "model_server.py"),
    "--host",
    "127.0.0.1",
    "--port",
    "{port}",
]
WAIT_S = 40.0

Model = dict[str, Any]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chaos]:
    async with running(tmp_path_factory.mktemp("models"), nodes=3, gpus=2) as made:
        yield made


async def ask(cluster: Chaos, method: str, path: str, status: int, body: object = None) -> Any:
    got, answer = await cluster.try_once(method, path, json=body)
    assert got == status, answer
    return answer


async def deploy(cluster: Chaos, name: str, *flags: str, **fields: Any) -> Model:
    body = {
        "name": name,
        "command": [*SERVER, *flags],
        "fraction": 0.25,
        "startup_timeout_s": "60s",
        **fields,
    }
    made: Model = await ask(
        cluster=cluster, method="POST", path="/v1/deployments", status=201, body=body
    )
    return made


async def shown(cluster: Chaos, name: str) -> Model:
    found: Model = await cluster.get(f"/v1/deployments/{name}")
    return found


async def until(cluster: Chaos, name: str, holds: Callable[[Model], bool]) -> Model:
    """The model as soon as it is as it should be."""
    async with asyncio.timeout(WAIT_S):
        while not holds(model := await shown(cluster, name)):
            await asyncio.sleep(0.02)
    return model


async def ready(cluster: Chaos, name: str) -> Model:
    return await until(cluster, name, lambda model: model["state"] == "ready")


async def undeployed(cluster: Chaos, name: str) -> None:
    await ask(cluster, "DELETE", f"/v1/deployments/{name}", 202)
    await until(cluster, name, lambda model: model["state"] == "undeployed")


async def fact_of(cluster: Chaos, job_id: str, kind: str) -> dict[str, Any]:
    """The last of that kind about this replica."""
    return [fact for fact in await cluster.history(job_id) if fact["kind"] == kind][-1]


async def say(url: str, text: str) -> str:
    body = {"model": "chat", "messages": [{"role": "user", "content": text}]}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/v1/chat/completions", json=body) as answer,
    ):
        found: str = (await answer.json())["choices"][0]["message"]["content"]
    return found


def urls(model: Model) -> list[str]:
    return [
        f"http://{replica['address']}:{replica['port']}"
        for replica in model["replicas"]
        if replica["ready"]
    ]


async def muster(cluster: Chaos, *arguments: str) -> str:
    """Return the output of the command, which must exit with 0."""
    told = {
        **os.environ,
        "MUSTER_PROFILE": str(cluster.folder / "profile.json"),
        "PYTHONPATH": str(ROOT),
    }
    line = [sys.executable, "-c", "from libs.cli.main import main; main()", *arguments]
    process = await asyncio.create_subprocess_exec(
        *line, env=told, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(WAIT_S):
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


async def test_a_model_is_served_scaled_shown_and_ended_by_the_command(cluster: Chaos) -> None:
    flags = (
        "--replicas",
        "2",
        "--gpus",
        "1",
        "--health-path",
        "/health",
        "--startup-timeout",
        "1m",
        "--wait",
    )
    assert await muster(cluster, "deploy", "chat", *flags, "--", *SERVER) == "chat\n"
    model = await shown(cluster, "chat")
    assert (model["state"], model["ready"], model["wanted"], model["generation"]) == (
        "ready",
        2,
        2,
        1,
    )
    assert [await say(url, "hello there") for url in urls(model)] == ["You said: hello there"] * 2
    listed = json.loads(await muster(cluster, "models", "-o", "json"))
    assert [each["name"] for each in listed] == ["chat"]
    assert (
        "chat/1" in (table := await muster(cluster, "models", "chat"))
        and "2 of 2 replicas are ready" in table
    )
    assert "not a model" in await muster(cluster, "logs", "chat/1")
    await muster(cluster, "scale", "chat", "1")
    await until(
        cluster,
        "chat",
        lambda model: [replica["id"] for replica in model["replicas"]] == ["chat-1"],
    )
    await muster(cluster, "undeploy", "chat")
    await until(cluster, "chat", lambda model: model["state"] == "undeployed")
    assert (await cluster.get("/v1/deployments"))["deployments"] == []


async def test_a_killed_replica_is_replaced_while_the_other_serves(cluster: Chaos) -> None:
    await deploy(cluster, "killed", replicas=2)
    before = await ready(cluster, "killed")
    pid = (await fact_of(cluster, "killed-1", "job.started"))["pid"]
    os.kill(pid, signal.SIGKILL)
    model = await until(
        cluster, "killed", lambda model: model["crashes"] == 1 and model["state"] == "ready"
    )
    assert [replica["id"] for replica in model["replicas"]] == ["killed-2", "killed-3"]
    assert model["replicas"][0] == before["replicas"][1]
    assert model["last_crash"] == "signalled, exit code 137, killed-1"
    await undeployed(cluster, "killed")


async def test_a_redeployment_never_serves_with_fewer_than_requested(cluster: Chaos) -> None:
    await deploy(cluster, "rolled", replicas=2)
    await ready(cluster, "rolled")
    await ask(
        cluster=cluster,
        method="POST",
        path="/v1/deployments/rolled/redeploy",
        status=202,
        body={"command": [*SERVER, "--start-s", "0.5"]},
    )
    seen: list[int] = []

    def noted(model: Model) -> bool:
        seen.append(model["ready"])
        return bool(model["state"] == "ready")

    model = await until(cluster, "rolled", noted)
    assert min(seen) >= 2 and len(seen) > 5
    assert [
        (replica["id"], replica["generation"]) for replica in model["replicas"] if replica["ready"]
    ] == [
        ("rolled-3", 2),
        ("rolled-4", 2),
    ]
    await undeployed(cluster, "rolled")


async def test_a_crash_loop_backs_off_and_is_named(cluster: Chaos) -> None:
    await deploy(cluster, "crashes", "--crash-after-s", "-1")
    model = await until(cluster, "crashes", lambda model: model["crashes"] == 3)
    assert (model["state"], model["ready"]) == ("crash_looping", 0)
    assert model["last_crash"].startswith("failed, exit code 3, crashes-")
    answer = await cluster.get("/v1/deployments/crashes/why")
    assert (
        "its replicas crash: 3 times so far" in answer["answer"]
        and "muster logs crashes-" in answer["remedy"]
    )
    await undeployed(cluster, "crashes")


async def test_a_replica_that_never_answers_is_ended_with_that_reason(cluster: Chaos) -> None:
    await deploy(cluster, "slow", "--start-s", "600", startup_timeout_s=1)
    model = await until(cluster, "slow", lambda model: model["crashes"] > 0)
    assert model["last_crash"].startswith("startup_timeout")
    assert (await fact_of(cluster, "slow-1", "job.finished"))["reason"] == "startup_timeout"
    await undeployed(cluster, "slow")


async def test_replicas_outlive_an_agent_and_are_probed_by_the_next(cluster: Chaos) -> None:
    await deploy(cluster, "kept", replicas=2)
    before = await ready(cluster, "kept")
    node = before["replicas"][0]["node_id"]
    agent = cluster.ticket(node)
    assert agent is not None, "the launcher knows its agents by their nodes' names"
    os.kill(agent.pid, signal.SIGKILL)
    said = [
        (await fact_of(cluster, replica["id"], "job.started"))["pid"]
        for replica in before["replicas"]
    ]

    async def readies() -> int:
        return sum(1 for fact in await cluster.history("kept-1") if fact["kind"] == "replica.ready")

    await _until_true(lambda: _above(readies, 1))
    model = await shown(cluster, "kept")
    assert (model["state"], model["crashes"]) == ("ready", 0)
    assert [replica["id"] for replica in model["replicas"]] == ["kept-1", "kept-2"]
    for pid in said:
        os.kill(pid, 0)
    await undeployed(cluster, "kept")


async def _above(count: Callable[[], Awaitable[int]], bound: int) -> bool:
    return await count() > bound


async def _until_true(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not await holds():
            await asyncio.sleep(0.05)


async def test_contradicting_change_of_a_deployment_is_refused_with_the_reason(
    cluster: Chaos,
) -> None:
    assert (
        "model 'unknown' does not exist"
        in (await ask(cluster, "GET", "/v1/deployments/unknown", 404))["detail"]
    )
    await ask(
        cluster=cluster,
        method="POST",
        path="/v1/deployments",
        status=422,
        body={"name": "a b", "command": ["x"]},
    )
    await ask(cluster=cluster, method="POST", path="/v1/deployments", status=422, body=[])
    await deploy(cluster, "twice", replicas=0)
    assert (
        "deployed already"
        in (
            await ask(
                cluster=cluster,
                method="POST",
                path="/v1/deployments",
                status=409,
                body={"name": "twice", "command": ["x"]},
            )
        )["detail"]
    )
    await ask(
        cluster=cluster,
        method="PATCH",
        path="/v1/deployments/twice",
        status=422,
        body={"replicas": "many"},
    )
    await undeployed(cluster, "twice")
    await ask(
        cluster=cluster,
        method="PATCH",
        path="/v1/deployments/twice",
        status=409,
        body={"replicas": 1},
    )


async def test_a_replica_that_does_not_fit_says_why(cluster: Chaos) -> None:
    await deploy(cluster, "huge", gpus=64, fraction=1.0)
    await until(cluster, "huge", lambda model: model["state"] == "waiting")
    answer = await cluster.get("/v1/deployments/huge/why")
    assert "replica huge-1 waits: this cluster could never hold it" in answer["answer"]
    await undeployed(cluster, "huge")
