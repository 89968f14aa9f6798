"""A whole cluster: a model without requests has no replica, and the next requests wake it."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.chaos.cluster import Chaos, running
from tests.integration.test_files_cluster import shell_of
from tests.tidy import ROOT

SERVER: Final = ROOT / "examples" / "model_server.py"
WITHIN_S: Final = 60.0
CLIENTS: Final = 8


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Chaos]:
    async with running(tmp_path, nodes=1, gpus=2) as found:
        yield found


async def until(cluster: Chaos, replicas: int, ready: int) -> dict[str, Any]:
    async with asyncio.timeout(WITHIN_S):
        while True:
            model = await cluster.get("/v1/deployments/m")
            if len(model["replicas"]) == replicas and model["ready"] == ready:
                return model
            await asyncio.sleep(0.1)


async def ask(cluster: Chaos, streams: bool) -> str:
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 4,
        "stream": streams,
    }
    async with cluster.session.post("/v1/chat/completions", json=body) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.text()


async def test_an_idle_model_sleeps_and_waiting_requests_wake_it(
    cluster: Chaos, tmp_path: Path
) -> None:
    shell = shell_of(cluster, tmp_path)
    bounds = ("--replicas", "0..2", "--target-concurrency", "4", "--idle", "4s")
    command = (sys.executable, str(SERVER), "--port", "{port}", "--model", "m")
    await shell.run("deploy", "m", *bounds, "--wait", "--", *command)
    await until(cluster, replicas=1, ready=1)
    await ask(cluster, streams=False)
    asleep = await until(cluster, replicas=0, ready=0)
    assert asleep["wanted"] == 0 and "pressure 0.00 wants 0" in asleep["law"]
    async with asyncio.timeout(WITHIN_S):
        answers = await asyncio.gather(*(ask(cluster, bool(i % 2)) for i in range(CLIENTS)))
    assert sum("data: [DONE]" in answer for answer in answers) == CLIENTS // 2
    out, _ = await shell.run("models", "m")
    assert "scaling  0 to 2 replicas; 4 requests a replica" in out and "0 replicas ready" in out
    _, said = await shell.run("scale", "m", "2", code=1)
    assert "keeps between 0 and 2 replicas of m by its requests" in said
    await shell.run("redeploy", "m", "--replicas", "1")
    fixed = await until(cluster, replicas=1, ready=1)
    assert fixed["scaling"] is None and fixed["wanted"] == 1
