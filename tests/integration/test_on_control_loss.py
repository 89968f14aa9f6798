"""A whole embedded cluster: a job that goes on without a lease lives through its node's silence, an
agent that stands still. While most nodes are silent, an operator says which are dead.
"""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any, Final

import pytest

from libs.common.life import node_life
from services.node_agent.supervisor import records
from tests.chaos.cluster import AGAIN_S, Chaos, running

# Short times; the other agents have most of a lease to be heard on a busy machine.
SETTINGS: Final = {
    "MUSTER_LEASE_MS": "6000",
    "MUSTER_MARGIN_MS": "1000",
    "MUSTER_HEARTBEAT_MS": "500",
    "MUSTER_TERM_MS": "2000",
}
WAIT_S: Final = 60.0
NODES: Final = 3


async def submit(chaos: Chaos, folder: Path, script: str) -> str:
    spec = {
        "command": ["/bin/sh", "-c", script],
        "gpus": 1,
        "workdir": str(folder),
        "on_control_loss": "continue",
    }
    status, body = await chaos.try_once("POST", "/v1/jobs", json=spec)
    assert status == 201, body
    return str(body["id"])


async def until(chaos: Chaos, path: str, **wanted: Any) -> dict[str, Any]:
    """The job or node, once it shows what is wanted."""
    async with asyncio.timeout(WAIT_S):
        while True:
            found: dict[str, Any] = await chaos.get(path)
            found = found.get("node", found)
            if wanted.items() <= found.items():
                return found
            await asyncio.sleep(AGAIN_S)


def agent_of(chaos: Chaos, node: str) -> int:
    found = chaos.ticket(node)
    assert found is not None, f"{node} does not live"
    return found.pid


@pytest.mark.timeout(240)
async def test_job_that_ignores_the_lease_survives_silence_and_moves_only_after_node_dead(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, NODES, 1, **SETTINGS) as chaos:
        patient = await submit(chaos, tmp_path, "while [ ! -e go ]; do sleep 0.1; done")
        node = (await until(chaos, f"/v1/jobs/{patient}", state="running"))["node_ids"][0]
        status, _ = await chaos.try_once("POST", f"/v1/nodes/{node}/dead")
        assert status == 409
        agent = agent_of(chaos, node)
        os.kill(agent, signal.SIGSTOP)
        try:
            await until(chaos, f"/v1/nodes/{node}", state="unreachable", reason="silent")
            job = await chaos.get(f"/v1/jobs/{patient}")
            assert (job["state"], job["attempt"]) == ("running", 1) and f"{node} is silent" in job[
                "waits_for"
            ]
            assert (
                f"muster node dead {node}" in (await chaos.get(f"/v1/jobs/{patient}/why"))["remedy"]
            )
        finally:
            os.kill(agent, signal.SIGCONT)
        back = await until(chaos, f"/v1/nodes/{node}", state="healthy")
        assert back["incarnation"] == 2
        (tmp_path / "go").touch()
        await until(chaos, f"/v1/jobs/{patient}", state="completed", attempt=1)
        await elsewhere(chaos, tmp_path)


async def elsewhere(chaos: Chaos, folder: Path) -> None:
    """Its node dies with it, as far as anyone can see, and an operator says so."""
    job_id = await submit(chaos, folder, "[ $MUSTER_ATTEMPT = 2 ] || sleep 600")
    node = (await until(chaos, f"/v1/jobs/{job_id}", state="running"))["node_ids"][0]
    agent = agent_of(chaos, node)
    os.kill(agent, signal.SIGSTOP)
    try:
        identity = records.read_identity(
            str(chaos.state / "services" / node / "jobs" / f"{job_id}.1")
        )
        assert identity is not None
        os.kill(identity["pid"], signal.SIGKILL)
        await until(chaos, f"/v1/nodes/{node}", state="unreachable")
        await until(chaos, f"/v1/jobs/{job_id}", state="running", attempt=1)
        status, body = await chaos.try_once("POST", f"/v1/nodes/{node}/dead", json={"user": "ada"})
        assert status == 202, body
        job = await until(chaos, f"/v1/jobs/{job_id}", state="completed", attempt=2)
        assert job["node_ids"] != [node]
    finally:
        os.kill(agent, signal.SIGCONT)


@pytest.mark.drill
@pytest.mark.timeout(240)
async def test_while_most_nodes_are_silent_an_operator_says_which_are_dead(tmp_path: Path) -> None:
    async with running(tmp_path, NODES, 1, **SETTINGS) as chaos:
        jobs = [
            (await chaos.try_once("POST", "/v1/jobs", json=ends_elsewhere(tmp_path)))[1]["id"]
            for _ in range(2)
        ]
        nodes = [
            (await until(chaos, f"/v1/jobs/{job}", state="running"))["node_ids"][0] for job in jobs
        ]
        frozen = [agent_of(chaos, node) for node in nodes]
        for agent in frozen:
            os.kill(agent, signal.SIGSTOP)
        try:
            for node in nodes:
                shown = await until(chaos, f"/v1/nodes/{node}", reason=node_life.UNHEARD)
                assert shown["state"] == "healthy"
            await asyncio.sleep(2.0)
            assert (await chaos.get(f"/v1/jobs/{jobs[0]}"))["state"] == "running"
            status, body = await chaos.try_once("POST", f"/v1/nodes/{nodes[0]}/dead")
            assert status == 202, body
            job = await until(chaos, f"/v1/jobs/{jobs[0]}", state="completed", attempt=2)
            assert job["node_ids"][0] not in nodes
            await until(chaos, f"/v1/nodes/{nodes[0]}", reason="declared_dead")
        finally:
            for agent in frozen:
                os.kill(agent, signal.SIGCONT)
        await until(chaos, f"/v1/jobs/{jobs[1]}", state="completed", attempt=2)


def ends_elsewhere(folder: Path) -> dict[str, Any]:
    """Return a job whose first attempt does not end by itself."""
    script = "[ $MUSTER_ATTEMPT = 2 ] || sleep 600"
    return {"command": ["/bin/sh", "-c", script], "gpus": 1, "workdir": str(folder)}
