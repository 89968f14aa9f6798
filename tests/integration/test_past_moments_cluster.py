"""A whole cluster of real processes runs jobs while a client records what the routes answer. Later
both gateways answer the same with `at`, except for what was never in the log; also sign-in by a
link holds over both.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tests.chaos.cluster import Chaos, running

PATHS = (
    *("/v1/jobs?all=1", "/v1/nodes", "/v1/gpus", "/v1/fleet"),
    *("/v1/queues", "/v1/tenants", "/v1/cluster"),
)
RECORDED_S = 8.0
RECORDS_MIN = 20
# Fields of the present that the log does not hold.
VOLATILE = {"last_heartbeat", "scheduler", "members", "log", "certificates"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chaos]:
    folder: Path = tmp_path_factory.mktemp("past")
    async with running(folder, nodes=2, gpus=4, gateways=2) as chaos:
        yield chaos


async def read(chaos: Chaos, url: str) -> dict[str, Any]:
    async with chaos.session.get(url) as response:
        assert response.status == 200, await response.text()
        found: dict[str, Any] = json.loads(await response.read())
        return found


def lasting(value: Any) -> Any:
    """Return the value without the fields that the log does not hold."""
    if isinstance(value, dict):
        return {name: lasting(each) for name, each in value.items() if name not in VOLATILE}
    return [lasting(each) for each in value] if isinstance(value, list) else value


@pytest.mark.asyncio(loop_scope="module")
async def test_a_cluster_at_work_is_shown_later_as_it_was_then(cluster: Chaos) -> None:
    told: dict[tuple[str, int], Any] = {}
    for number in range(6):
        body = {"command": ["sleep", str(number / 2)], "gpus": 1 + number % 3, "name": f"n{number}"}
        async with cluster.session.post("/v1/jobs", json=body) as response:
            assert response.status == 201
    until = asyncio.get_running_loop().time() + RECORDED_S
    while asyncio.get_running_loop().time() < until:
        for path in PATHS:
            found = await read(cluster, cluster.urls[0] + path)
            told[path, found["seq"]] = lasting(found)
        await asyncio.sleep(0.02)
    assert len(told) >= RECORDS_MIN
    for (path, seq), then in told.items():
        for url in cluster.urls:
            at = f"{url}{path}{'&' if '?' in path else '?'}at={seq}&min_seq={seq}"
            assert lasting(await read(cluster, at)) == then, (path, seq)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_link_of_one_gateway_signs_in_once_at_the_other(cluster: Chaos) -> None:
    async with cluster.session.post("/v1/session/links") as response:
        code = (await response.json())["path"].removeprefix("/#link=")
    async with aiohttp.ClientSession() as stranger:
        ask = f"{cluster.urls[1]}/v1/session"
        statuses = []
        for _ in range(2):
            async with stranger.post(ask, json={"link": code}) as response:
                statuses.append(response.status)
        assert statuses == [200, 401]
