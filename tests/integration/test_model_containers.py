"""A model whose replicas run in containers of a real engine (`make test-containers`).

The tests are skipped without an engine (MUSTER_CONTAINER_ENGINE, or Docker's socket).
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
from containers_world import ENGINE, IMAGE, WHY_NOT, image  # noqa: F401

from services.node_agent.runtimes import container
from services.node_agent.runtimes.engine import Engine
from tests.chaos.cluster import Chaos, running

pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)

WITHIN_S: Final = 60.0
SERVE: Final = "echo $MUSTER_JOB_ID > /tmp/index.html; exec httpd -f -p $PORT -h /tmp"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Chaos]:
    async with running(tmp_path, nodes=1, gpus=3, MUSTER_CONTAINER_ENGINE=ENGINE) as found:
        yield found


async def ready(cluster: Chaos, count: int, generation: int) -> list[dict[str, Any]]:
    """Return the replicas once so many of this generation, and no others, are ready."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            model = await cluster.get("/v1/deployments/m")
            found: list[dict[str, Any]] = model["replicas"]
            if len(found) == count and all(
                each["ready"] and each["generation"] == generation for each in found
            ):
                return found
            await asyncio.sleep(0.1)


async def containers(cluster: Chaos) -> int:
    left = await Engine(ENGINE).left(container.LABEL)
    return sum(str(cluster.folder) in where for _, where in left)


async def test_replicas_in_containers_are_probed_replaced_one_by_one_and_removed(
    cluster: Chaos,
) -> None:
    command = ["sh", "-c", SERVE]
    body = {"name": "m", "image": IMAGE, "replicas": 2, "command": command, "health_path": "/"}
    status, said = await cluster.try_once("POST", "/v1/deployments", json=body)
    assert status == 201, said
    for replica in await ready(cluster, count=2, generation=1):
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{replica['port']}/index.html") as answer,
        ):
            assert (await answer.text()).strip() == replica["id"]
    assert await containers(cluster) == 2
    status, said = await cluster.try_once("POST", "/v1/deployments/m/redeploy", json={"grace_s": 1})
    assert status == 202 or status == 200, said
    await ready(cluster, count=2, generation=2)
    status, said = await cluster.try_once("DELETE", "/v1/deployments/m")
    assert status in (200, 202), said
    async with asyncio.timeout(WITHIN_S):
        while await containers(cluster):
            await asyncio.sleep(0.1)
