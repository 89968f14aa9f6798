"""A replica with a standby on a whole cluster: the engine is killed, the standby serves, and no
request is lost.
"""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.chaos.cluster import Chaos, running
from tests.integration.test_resident_data import ask, deploy, entry, keep, ready, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

LOAD_S = 6.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chaos]:
    async with running(tmp_path_factory.mktemp("standby"), nodes=1, gpus=4) as made:
        yield made


async def chat(cluster: Chaos, name: str) -> int:
    body = {"model": name, "messages": [{"role": "user", "content": "hello"}]}
    status, _ = await cluster.try_once("POST", "/v1/chat/completions", json=body)
    return status


async def serving_port(cluster: Chaos, name: str) -> int:
    """Return the port of the model's replica, once that of the last deployment has ended."""

    async def alone() -> list[Any]:
        found = (await cluster.get(f"/v1/deployments/{name}"))["replicas"]
        return found if len(found) == 1 else []

    (replica,) = await until(alone, "one replica")
    return int(replica["port"])


def read(path: str) -> str:
    return Path(path).read_text(encoding="ascii")


def listener_of(port: int) -> int:
    """Return the process that listens on a port of this machine."""
    wanted = {
        line.split()[9]
        for line in read("/proc/net/tcp").splitlines()[1:]
        if line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "0A"
    }
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        except OSError:
            continue
        if any(link == f"socket:[{inode}]" for link in links for inode in wanted):
            return int(pid)
    raise AssertionError(f"nothing listens on {port}")


async def with_standby(cluster: Chaos, name: str) -> None:
    """Deploy a model, and replace its replica by one with a standby that is ready."""
    await deploy(cluster, name)
    kept = await keep(cluster, name, "standby", size_bytes=1 << 30)
    assert kept["size_bytes"] == 1 << 30
    await ask(cluster, "POST", f"/v1/deployments/{name}/redeploy", 202, {})
    await entry(cluster, name, "standby", "ready")
    await ready(cluster, name)


async def test_a_standby_takes_over_and_no_request_is_lost(cluster: Chaos) -> None:
    await with_standby(cluster, "twin")
    before = await serving_port(cluster, "twin")
    first = await asyncio.to_thread(listener_of, before)
    answers: list[int] = []
    stop = time.monotonic() + LOAD_S

    async def load() -> None:
        while time.monotonic() < stop:
            answers.append(await chat(cluster, "twin"))

    clients = [asyncio.create_task(load()) for _ in range(3)]
    await asyncio.sleep(1)
    os.kill(first, signal.SIGKILL)
    await asyncio.gather(*clients)
    assert set(answers) == {200}
    assert await serving_port(cluster, "twin") != before
    (event,) = (await cluster.get("/v1/events", kind="standby.promoted"))["events"]
    assert event["fact"]["number"] == 1 and event["fact"]["reason"] == "signal 9"
    shown = await cluster.get("/v1/deployments/twin")
    assert len(shown["replicas"]) == 1 and shown["crashes"] == 0


async def test_a_new_standby_follows_and_takes_over_again(cluster: Chaos) -> None:
    await entry(cluster, "twin", "standby", "ready")
    port = await serving_port(cluster, "twin")
    os.kill(await asyncio.to_thread(listener_of, port), signal.SIGKILL)
    assert await chat(cluster, "twin") == 200

    async def twice() -> Any:
        events = (await cluster.get("/v1/events", kind="standby.promoted"))["events"]
        return len(events) == 2

    await until(twice, "two promotions")


async def test_a_dropped_standby_ends_and_the_engine_that_serves_goes_on(cluster: Chaos) -> None:
    await entry(cluster, "twin", "standby", "ready")
    port = await serving_port(cluster, "twin")
    serving = await asyncio.to_thread(listener_of, port)
    parent = int(read(f"/proc/{serving}/stat").split()[3])
    await ask(cluster, "DELETE", "/v1/deployments/twin/kept/standby", 204)

    async def alone() -> bool:
        children = read(f"/proc/{parent}/task/{parent}/children")
        return children.split() == [str(serving)]

    await until(alone, "only the serving engine is left")
    assert await chat(cluster, "twin") == 200
