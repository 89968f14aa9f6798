"""A whole embedded cluster whose log and scheduler stand still for longer than a lease: its jobs
live on, and nothing is done twice.
"""

import asyncio
import os
import signal
from pathlib import Path
from typing import Final

import msgspec
import pytest

from libs.common.timing import FAST_TIMING
from libs.embedded import plan
from libs.embedded.living import Ticket
from services.node_agent.peers.kept_roster import RosterFile
from tests.chaos.cluster import AGAIN_S, Chaos, running

# A lease of 12 s (an agent has 9 s to begin again on a busy machine), and more than that without a
# word.
SETTINGS: Final = {
    "MUSTER_LEASE_MS": "12000",
    "MUSTER_MARGIN_MS": "1000",
    "MUSTER_HEARTBEAT_MS": "500",
    "MUSTER_TERM_MS": "2000",
}
# A quarter of a lease of 3 s is the time in which agents must have asked each other.
FAST: Final = {
    f"MUSTER_{name.upper()}": str(value)
    for name, value in msgspec.structs.asdict(FAST_TIMING).items()
}
DOWN_S: Final = 15.0
JOB_S: Final = 18.0
WAIT_S: Final = 60.0
NODES: Final = 3


async def states(chaos: Chaos) -> list[str]:
    return sorted(job["state"] for job in (await chaos.jobs()).values())


async def until_all(chaos: Chaos, state: str, count: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while await states(chaos) != [state] * count:
            await asyncio.sleep(AGAIN_S)


async def until_each_has_its_roster(chaos: Chaos) -> None:
    folders = [chaos.state / "services" / f"node-{number}" for number in range(1, NODES + 1)]
    async with asyncio.timeout(WAIT_S):
        while any(
            [len((await RosterFile(folder).load()).roster.nodes) < NODES for folder in folders]
        ):
            await asyncio.sleep(AGAIN_S)


def living(chaos: Chaos, name: str) -> Ticket:
    found = chaos.ticket(name)
    assert found is not None, f"{name} does not live"
    return found


async def started(chaos: Chaos, folder: Path) -> None:
    """Run a job on each node."""
    spec = {"command": ["/bin/sh", "-c", f"sleep {JOB_S}"], "gpus": 1, "workdir": str(folder)}
    await until_each_has_its_roster(chaos)
    for number in range(NODES):
        status, body = await chaos.try_once(
            "POST", "/v1/jobs", json={**spec, "name": f"long-{number}"}
        )
        assert status in (200, 201, 202), body
    await until_all(chaos, "running", NODES)


async def silent(chaos: Chaos, kill: str = "") -> None:
    """Stop the log and the scheduler for longer than a lease; kill a process meanwhile."""
    frozen = [living(chaos, plan.SERVER).pid, living(chaos, "scheduler").pid]
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(1.0)
        if kill:
            os.kill(living(chaos, kill).pid, signal.SIGKILL)
        await asyncio.sleep(DOWN_S - 1.0)
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)


async def completed_once(chaos: Chaos) -> None:
    """Wait until each job has completed, and check that it had one attempt."""
    await until_all(chaos, "completed", NODES)
    for job in (await chaos.jobs()).values():
        kinds = [fact["kind"] for fact in await chaos.history(job["id"])]
        assert (
            job["attempt"] == 1 and kinds.count("job.placed") == kinds.count("job.finished") == 1
        ), kinds


@pytest.mark.timeout(150)
async def test_jobs_run_on_while_log_and_scheduler_are_silent_and_an_agent_restarts(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, NODES, 1, **SETTINGS) as chaos:
        await started(chaos, tmp_path)
        await silent(chaos, kill="node-1")
        await completed_once(chaos)


@pytest.mark.drill
@pytest.mark.timeout(150)
async def test_jobs_run_on_while_log_and_scheduler_are_silent_with_the_times_of_fast(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, NODES, 1, **FAST) as chaos:
        await started(chaos, tmp_path)
        await silent(chaos)
        await completed_once(chaos)
