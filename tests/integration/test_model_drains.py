"""Redeployments under load lose no request: real replicas that die at once on SIGTERM, real
gateways, answers that take long.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tests.chaos.cluster import Chaos, running
from tests.tidy import ROOT

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.attack]

CHAT = "/v1/chat/completions"
SERVER = [sys.executable, "-m", "tests.integration.openai_replica", "{port}"]
CLIENTS = 12
REDEPLOYMENTS = 4
WAIT_S = 60.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chaos]:
    async with running(tmp_path_factory.mktemp("drains"), nodes=2, gpus=2, gateways=2) as made:
        yield made


async def shown(cluster: Chaos, name: str) -> dict[str, Any]:
    found: dict[str, Any] = await cluster.get(f"/v1/deployments/{name}")
    return found


async def until_served(cluster: Chaos, name: str, generation: int, replicas: int) -> None:
    """Until nothing but this generation is there."""
    async with asyncio.timeout(WAIT_S):
        while True:
            found = (await shown(cluster, name))["replicas"]
            if [(each["generation"], each["ready"]) for each in found] == [
                (generation, True)
            ] * replicas:
                return
            await asyncio.sleep(0.05)


async def deploy(cluster: Chaos, name: str, replicas: int, **fields: Any) -> None:
    body: dict[str, Any] = {
        "name": name,
        "command": SERVER,
        "workdir": str(ROOT),
        "replicas": replicas,
        "fraction": 0.25,
        "grace_s": 20,
        **fields,
    }
    status, answer = await cluster.try_once("POST", "/v1/deployments", json=body)
    assert status == 201, answer
    await until_served(cluster, name, 1, replicas)


async def redeploy(cluster: Chaos, name: str, **fields: Any) -> None:
    status, answer = await cluster.try_once("POST", f"/v1/deployments/{name}/redeploy", json=fields)
    assert status == 202, answer


class Load:
    """Clients of both gateways that ask on and on, half of them for streams, with answers that take
    up to a second.
    """

    def __init__(self, cluster: Chaos) -> None:
        self.cluster = cluster
        self.whole = 0
        self.lost: list[str] = []
        self.stop = False

    async def client(self, number: int) -> None:
        streams, url = number % 2 == 0, self.cluster.urls[number // 2 % len(self.cluster.urls)]
        body: dict[str, Any] = {
            "model": "m",
            "stream": streams,
            "x_finish": 1,
            "x_chunks": 10,
            "x_gap_s": 0.01 * (number % 11),
        }
        if not streams:
            body = {"model": "m", "x_delay_s": 0.1 * (number % 11)}
        while not self.stop:
            try:
                async with self.cluster.session.post(url + CHAT, json=body) as response:
                    text = await response.text()
                whole = response.status == 200 and (
                    text.endswith("data: [DONE]\n\n") if streams else json.loads(text)["choices"]
                )
            except aiohttp.ClientError as error:
                whole, text = False, repr(error)
            self.whole += bool(whole)
            if not whole:
                self.lost.append(text[-300:])


async def test_redeployments_under_load_lose_no_request(cluster: Chaos) -> None:
    await deploy(cluster, "m", 2)
    load = Load(cluster)
    clients = [asyncio.create_task(load.client(number)) for number in range(CLIENTS)]
    for generation in range(2, 2 + REDEPLOYMENTS):
        await redeploy(cluster, "m")
        await until_served(cluster, "m", generation, 2)
    load.stop = True
    await asyncio.gather(*clients)
    print(f"{load.whole} whole, {len(load.lost)} lost")
    assert load.lost == [] and load.whole > 200


async def test_a_replica_without_requests_is_stopped_before_its_grace_is_over(
    cluster: Chaos,
) -> None:
    await deploy(cluster, "idle", 1, grace_s=3_600)
    await redeploy(cluster, "idle")
    await until_served(cluster, "idle", 2, 1)
    facts = await cluster.history("idle-1")
    assert [fact["reason"] for fact in facts if fact["kind"] == "job.stop_ordered"] == ["cancelled"]


async def test_the_grace_of_a_redeployment_bounds_what_the_old_replica_has_left(
    cluster: Chaos,
) -> None:
    """The request takes longer than the new grace, and shorter than the old one: it ends with an
    error that says why.
    """
    await deploy(cluster, "bounded", 1, grace_s=3_600)
    body = {"model": "bounded", "stream": True, "x_chunks": 1_000, "x_gap_s": 0.02}
    async with cluster.session.post(CHAT, json=body) as response:
        await response.content.readany()
        await redeploy(cluster, "bounded", grace_s=1)
        text = await response.text()
    assert "closed the connection before its answer was complete" in text.strip().split("\n\n")[-1]
    await until_served(cluster, "bounded", 2, 1)


async def test_an_undeployed_model_finishes_its_answers(cluster: Chaos) -> None:
    await deploy(cluster, "last", 1)
    body = {"model": "last", "stream": True, "x_chunks": 60, "x_gap_s": 0.02, "x_finish": 1}
    async with cluster.session.post(CHAT, json=body) as response:
        await response.content.readany()
        assert (await cluster.try_once("DELETE", "/v1/deployments/last"))[0] == 202
        assert (await response.text()).endswith("data: [DONE]\n\n")
    assert (await cluster.try_once("POST", CHAT, json={"model": "last"}))[0] == 404
