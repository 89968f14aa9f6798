"""A replica that is too busy for its health probe still serves: real servers whose health path
falls silent, on a real cluster.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.chaos.cluster import Chaos, running
from tests.integration.test_model_drains import CHAT, SERVER, WAIT_S, deploy, redeploy, shown

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.attack]

PROBES = {"health_interval_s": 1, "health_timeout_s": 1, "health_failures": 2}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chaos]:
    async with running(tmp_path_factory.mktemp("busy"), nodes=1, gpus=2) as made:
        yield made


async def until_state(cluster: Chaos, name: str, state: str) -> dict[str, Any]:
    async with asyncio.timeout(WAIT_S):
        while (model := await shown(cluster, name))["state"] != state:
            await asyncio.sleep(0.05)
    return model


async def ask(cluster: Chaos, name: str) -> int:
    return (await cluster.try_once("POST", CHAT, json={"model": name}))[0]


async def kinds(cluster: Chaos, job_id: str) -> list[str]:
    return [fact["kind"] for fact in await cluster.history(job_id)]


async def test_a_replica_that_answers_requests_never_becomes_unready(cluster: Chaos) -> None:
    await deploy(cluster, "busy", 1, command=[*SERVER, "1"], **PROBES)
    body = {"model": "busy", "stream": True, "x_chunks": 80, "x_gap_s": 0.1, "x_finish": 1}
    async with cluster.session.post(CHAT, json=body) as response:
        assert (await response.text()).endswith("data: [DONE]\n\n")
    assert "replica.unready" not in await kinds(cluster, "busy-1")


async def test_when_no_replica_is_ready_a_running_one_answers_and_is_ready_again(
    cluster: Chaos,
) -> None:
    await deploy(cluster, "silent", 1, command=[*SERVER, "1"], **PROBES)
    model = await until_state(cluster, "silent", "unready")
    assert model["ready"] == 0 and model["replicas"][0]["state"] == "unready"
    why = await cluster.get("/v1/deployments/silent/why")
    assert "1 of 1 replicas run but do not answer their health probe" in why["answer"]
    assert await ask(cluster, "silent") == 200
    await until_state(cluster, "silent", "ready")


async def test_a_redeployment_that_never_becomes_ready_keeps_the_old_replica_that_answers(
    cluster: Chaos,
) -> None:
    await deploy(cluster, "kept", 1, command=[*SERVER, "1"], **PROBES)
    await until_state(cluster, "kept", "unready")
    await redeploy(cluster, "kept", command=[*SERVER, "0"])
    async with asyncio.timeout(WAIT_S):
        while "job.started" not in await kinds(cluster, "kept-2"):
            await asyncio.sleep(0.1)
    for _ in range(10):
        assert await ask(cluster, "kept") == 200
        await asyncio.sleep(0.2)
    assert "job.stop_ordered" not in await kinds(cluster, "kept-1")
