"""Replicas on several nodes: one address, placed and healed as a whole."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from tests.chaos.cluster import Chaos, running

SERVER: Final = Path(__file__).with_name("gang_server.py")
READY_S: Final = 60.0
CHAT: Final = {"model": "large", "messages": [{"role": "user", "content": "hi"}]}


async def replicas(
    chaos: Chaos, enough: Callable[[list[dict[str, Any]]], bool]
) -> list[dict[str, Any]]:
    """Return the ready replicas, once they are enough."""
    async with asyncio.timeout(READY_S):
        while True:
            shown = (await chaos.get("/v1/deployments/large"))["replicas"]
            found = [each for each in shown if each["ready"]]
            if enough(found):
                return found
            await asyncio.sleep(0.1)


async def answer(chaos: Chaos) -> str:
    async with chaos.session.post("/v1/chat/completions", json=CHAT) as response:
        body = await response.json()
        assert response.status == 200, body
        return str(body["choices"][0]["message"]["content"])


def kill_rank(port: int, number: int) -> None:
    """Kill the process of that rank, of the replica on this port."""
    told, rank = f"{SERVER}\0{port}\0".encode(), f"\0RANK={number}\0".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "cmdline").read_bytes().endswith(told) and rank in (
                b"\0" + (folder / "environ").read_bytes()
            ):
                os.kill(int(folder.name), signal.SIGKILL)
                return
        except OSError:
            continue
    raise AssertionError(f"no process serves port {port} with rank {number}")


@pytest.mark.timeout(240)
async def test_a_replica_on_two_nodes_answers_and_is_replaced_as_a_whole(tmp_path: Path) -> None:
    async with running(tmp_path, nodes=2, gpus=1) as chaos:
        body = {"name": "large", "nodes": 2, "command": [sys.executable, str(SERVER), "{port}"]}
        status, made = await chaos.try_once("POST", "/v1/deployments", json=body)
        assert status == 201, made
        (first,) = await replicas(chaos, lambda found: len(found) == 1)
        assert len(first["nodes"]) == 2 and first["nodes"][0] == first["node_id"]
        assert await answer(chaos) == "2 ranks"

        kill_rank(first["port"], 1)
        (second,) = await replicas(
            chaos, lambda found: [each["id"] for each in found] not in ([], [first["id"]])
        )
        assert len(second["nodes"]) == 2
        assert await answer(chaos) == "2 ranks"


@pytest.mark.timeout(240)
async def test_a_replica_on_more_nodes_than_are_free_waits_and_says_why(tmp_path: Path) -> None:
    async with running(tmp_path, nodes=2, gpus=1) as chaos:
        status, job = await chaos.try_once("POST", "/v1/jobs", json={"command": ["sleep", "600"]})
        assert status == 201, job
        body = {"name": "large", "nodes": 2, "command": [sys.executable, str(SERVER), "{port}"]}
        status, made = await chaos.try_once("POST", "/v1/deployments", json=body)
        assert status == 201, made
        await asyncio.sleep(1.0)
        why = await chaos.get("/v1/deployments/large/why")
        assert "2" in str(why) and "node" in str(why), why
        assert (await chaos.get("/v1/deployments/large"))["state"] == "waiting"
        status, _ = await chaos.try_once("POST", f"/v1/jobs/{job['id']}/cancel", json={})
        assert status in (200, 202)
        assert len(await replicas(chaos, lambda found: len(found) == 1)) == 1
