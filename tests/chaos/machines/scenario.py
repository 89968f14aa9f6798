"""Runs the scenario: clients and faults for some minutes, then all rules."""

import asyncio
import random
import time
from collections import Counter
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

from aiohttp import ClientSession

from tests.chaos.machines import clients, faults, judging, network
from tests.chaos.machines.clients import Clients
from tests.chaos.machines.faults import Fault
from tests.chaos.machines.history import SUBMIT, History
from tests.chaos.machines.hosts import NODES, SERVERS, SERVICES, Hosts, healthy, running, session
from tests.chaos.machines.injecting import Injecting


async def failing(folder: Path, minutes: float, seed: int) -> dict[str, Any]:
    """Let hosts fail for that time under the clients' jobs, and judge what remains."""
    if why := network.missing():
        return {"scenario": "cluster", "skipped": why, "violations": []}
    began = time.monotonic()
    length_s = minutes * 60
    schedule = faults.schedule(
        random.Random(f"{seed} faults"), length_s, SERVERS, (*SERVICES, *NODES)
    )
    async with running(folder) as hosts, AsyncExitStack() as stack:
        asking = await stack.enter_async_context(session(hosts))
        keys = await clients.tenants(hosts, asking)
        sessions = {
            tenant: await stack.enter_async_context(session(hosts, key))
            for tenant, key in keys.items()
        }
        found = Clients(hosts, History(folder / "history"), sessions, seed)
        injecting = Injecting(hosts)
        async with asyncio.TaskGroup() as working:
            working.create_task(found.run(length_s))
            recovering = working.create_task(_recovered(hosts, injecting, schedule, asking))
        judged = await _judged(hosts, found, asking)
    return {
        "scenario": "cluster",
        "seed": seed,
        "jobs": judged.jobs,
        "faults": injecting.done,
        "skipped_faults": injecting.skipped,
        "seconds": round(time.monotonic() - began, 1),
        "recovered_s": round(recovering.result(), 1),
        "requeues": judged.requeues,
        **_operations(found.history),
        "violations": judged.wrong,
    }


async def _recovered(
    hosts: Hosts, injecting: Injecting, schedule: list[Fault], asking: ClientSession
) -> float:
    """Carry out the faults; return the seconds from the end of the last until all is ready again,
    or negative seconds if it is not in time.
    """
    await injecting.run(schedule)
    over = time.monotonic()
    try:
        await healthy(hosts, asking)
    except TimeoutError:
        return over - time.monotonic()
    return time.monotonic() - over


async def _judged(hosts: Hosts, found: Clients, asking: ClientSession) -> judging.Judgement:
    try:
        return await judging.judge(hosts, asking, found, clients.LIMITS)
    except TimeoutError as error:
        wrong = [f"the cluster did not recover: {error}"]
        return judging.Judgement(wrong=wrong, jobs=0, requeues=Counter())


def _operations(history: History) -> dict[str, Any]:
    """Return what the clients saw: operations, unknown ends, and the longest time without an
    acknowledged submission.
    """
    submitted = [each for each in history.operations if each.kind == SUBMIT]
    accepted = [each.ended_ns for each in submitted if each.accepted]
    gaps = [later - earlier for earlier, later in pairwise(sorted(accepted))]
    return {
        "operations": len(history.operations),
        "unknown_submissions": sum(each.unknown for each in submitted),
        "longest_gap_s": round(max(gaps, default=0) / 1e9, 1),
    }
