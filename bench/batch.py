"""Cost of a job that is submitted in a batch of 100, beside one that is submitted alone.

One whole cluster with audit. Turns of single submissions and of batches follow each other, first of
jobs that are held, so that the submission is all that costs, then of jobs that run `true` and whose
turn ends when the last is completed. The figures are medians over the turns: processor time of the
gateway and of all services for each job, and the ratios of batches to single submissions.
"""

import asyncio
import time
from statistics import median
from typing import Any, NamedTuple

import aiohttp

from bench.cluster import QUICK, Cluster, client, counts, running, say, submit

TURNS = 2 if QUICK else 5
# Jobs of one turn, by what they do.
JOBS = {"submitted": 400 if QUICK else 1_000, "run": 200 if QUICK else 300}
CLIENTS = 32
BATCH = 100
LOOK_S = 0.25
# After the last answer: quota, scheduler and audit have read the facts.
SETTLE_S = 0.5
WARM_JOBS = 100


class Turn(NamedTuple):
    """Milliseconds of processor time for each job, and jobs in a second."""

    gateway_ms: float
    services_ms: float
    rate: float


async def alone(session: aiohttp.ClientSession, jobs: int, fields: dict[str, Any]) -> None:
    left = iter(range(jobs))

    async def submitter() -> None:
        for _ in left:
            await submit(session, "true", **fields)

    await asyncio.gather(*(submitter() for _ in range(CLIENTS)))


async def batches(session: aiohttp.ClientSession, jobs: int, fields: dict[str, Any]) -> None:
    body: dict[str, Any] = {"jobs": [{"command": ["true"], **fields}] * BATCH}
    for _ in range(jobs // BATCH):
        async with session.post("/v1/jobs:batch", json=body) as answer:
            found = await answer.json()
            assert found.get("accepted") == BATCH, found


async def turn(cluster: Cluster, jobs: int, batched: bool, held: bool) -> Turn:
    """Submit the jobs and wait until all are completed, or until the services know them."""
    async with client(cluster) as session:
        target = (await counts(session)).get("completed", 0) + jobs
        used, began = cluster.cpu_s(), time.monotonic()
        await (batches if batched else alone)(session, jobs, {"hold": True} if held else {})
        took_s = time.monotonic() - began
        if held:
            await asyncio.sleep(SETTLE_S)
        while not held and (await counts(session)).get("completed", 0) < target:
            await asyncio.sleep(LOOK_S)
            took_s = time.monotonic() - began
    spent = {kind: seconds - used[kind] for kind, seconds in cluster.cpu_s().items()}
    of_services = sum(seconds for kind, seconds in spent.items() if kind != "jobs")
    return Turn(spent["gateway"] * 1_000 / jobs, of_services * 1_000 / jobs, jobs / took_s)


def measure(cluster: Cluster, what: str, jobs: int) -> None:
    held = what == "submitted"
    found: dict[bool, list[Turn]] = {False: [], True: []}
    for batched in found:
        asyncio.run(turn(cluster, WARM_JOBS, batched, held))
    for _ in range(TURNS):
        for batched, turns in found.items():
            turns.append(asyncio.run(turn(cluster, jobs, batched, held)))
    for place, (name, unit) in enumerate(
        (("gateway_cpu_ms", "ms"), ("services_cpu_ms", "ms"), ("jobs_per_s", "1/s"))
    ):
        single, many = (median(each[place] for each in found[batched]) for batched in found)
        say(f"{what}_{name}_alone", single, unit, jobs, turns=TURNS, clients=CLIENTS)
        say(f"{what}_{name}_batched", many, unit, jobs, turns=TURNS, batch=BATCH)
        say(f"{what}_{name}_ratio", many / single, "", jobs, turns=TURNS)


def main() -> None:
    with running(nodes=8) as cluster:
        for what, jobs in reversed(JOBS.items()):
            measure(cluster, what, jobs)


if __name__ == "__main__":
    main()
