"""One agent is frozen for longer than its lease.

Its supervisors end their jobs in time, other nodes start them only then, and the agent rejoins when
it wakes.
"""

import asyncio
import os
import signal
import time
from typing import Any, Final

from tests.chaos import checks, lives
from tests.chaos.cluster import AGAIN_S, Chaos
from tests.chaos.submitting import Wish

VICTIM: Final = "node-2"
FROZEN_S: Final = 12.0
JOB_S: Final = 6.0
LEASE_MS: Final = 4_000
# Short leases: an agent that wakes finds that its lease ended long ago.
SHORT: Final = {
    "MUSTER_LEASE_MS": str(LEASE_MS),
    "MUSTER_MARGIN_MS": "1000",
    "MUSTER_HEARTBEAT_MS": "500",
}
ALL_BEGAN_S: Final = 30.0


def wishes(chaos: Chaos) -> list[Wish]:
    """One for each GPU, so that every node has its part."""
    return [Wish(f"freeze-{number:03}", JOB_S) for number in range(chaos.nodes * chaos.gpus)]


async def freeze(chaos: Chaos, count: int) -> tuple[int, list[str]]:
    """Stop the victim once `count` jobs have begun; return that time and its jobs then."""
    deadline = time.monotonic() + ALL_BEGAN_S
    while len(_lives(chaos)) < count and time.monotonic() < deadline:
        await asyncio.sleep(AGAIN_S)
    jobs = await chaos.jobs()
    doomed = [job["id"] for job in jobs.values() if _runs_on_victim(job)]
    found = chaos.ticket(VICTIM)
    assert found is not None, f"{VICTIM} does not live"
    os.kill(found.pid, signal.SIGSTOP)
    frozen_ns = time.monotonic_ns()
    try:
        await asyncio.sleep(FROZEN_S)
    finally:
        os.kill(found.pid, signal.SIGCONT)
    return frozen_ns, doomed


def _runs_on_victim(job: dict[str, Any]) -> bool:
    return (
        job["state"] in ("placed", "running")
        and job["attempt"] == 1
        and job["node_ids"] == [VICTIM]
    )


def _lives(chaos: Chaos) -> dict[tuple[str, int], lives.Life]:
    return lives.read(chaos.lives.read_text().splitlines()) if chaos.lives.exists() else {}


def violations(chaos: Chaos, frozen_ns: int, doomed: list[str]) -> list[str]:
    """Return the violations of the rules for the freeze itself, beside the rules for every job."""
    found = _lives(chaos)
    wrong = checks.frozen_jobs_died_within_their_lease(found, frozen_ns, LEASE_MS, doomed)
    wrong += [
        f"{job_id} was on the frozen node and was never begun again"
        for job_id in doomed
        if (job_id, 2) not in found
    ]
    return (
        wrong
        if doomed
        else [f"nothing ran on {VICTIM} when it froze: the scenario has shown nothing"]
    )
