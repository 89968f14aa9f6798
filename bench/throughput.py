"""Jobs per second through the whole cluster with audit: submitted, run, released and closed.

Each job runs `true` as a real process. Enough clients submit to keep the cluster busy; with few
clients the figure would be the inverse of one submission's latency. The clock stops when the last
job is completed. The archive must have caught up a few seconds later.

With PEER=slurm, Muster and Slurm run the same number of jobs in turns (`bench/peers/slurm.py`):
Slurm's jobs come from SUBMITTERS loops of `sbatch`, as its users submit them, and as one array.
"""

import asyncio
import sys
import time

from bench import peers
from bench.cluster import QUICK, Cluster, archived, client, counts, running, say, submit
from bench.peers import slurm, turns

JOBS = 800 if QUICK else 3_200
CLIENTS = 32
# Jobs of a turn beside a peer, and the loops that submit to it.
TURN_JOBS = 200 if QUICK else 800
SUBMITTERS = 4
ARCHIVE_WITHIN_S = 5.0


async def run(cluster: Cluster, jobs: int) -> tuple[float, float]:
    """Return the seconds until all are completed, and the archive's lag after that."""
    async with client(cluster) as session:
        before = (await counts(session)).get("completed", 0)
        began = time.monotonic()

        left = iter(range(jobs))

        async def submitter() -> None:
            for _ in left:
                await submit(session, "true")

        await asyncio.gather(*(submitter() for _ in range(CLIENTS)))
        while (await counts(session)).get("completed", 0) < before + jobs:
            await asyncio.sleep(0.05)
        took_s = time.monotonic() - began
        return took_s, await archived(cluster, session, ARCHIVE_WITHIN_S)


async def commits(cluster: Cluster) -> int:
    """Return how many commits the log has."""
    async with client(cluster) as session, session.get("/v1/cluster") as answer:
        return int((await answer.json())["seq"])


def measure(name: str, replicas: int) -> None:
    with running(replicas, nodes=8) as cluster:
        asyncio.run(run(cluster, JOBS // 10))
        before, stored = cluster.cpu_s(), asyncio.run(commits(cluster))
        took_s, lag_s = asyncio.run(run(cluster, JOBS))
        stored = asyncio.run(commits(cluster)) - stored
        used = {
            kind: (seconds - before[kind]) * 1000 / JOBS
            for kind, seconds in cluster.cpu_s().items()
        }
    suffix = "" if replicas == 1 else "_r3"
    say(
        f"jobs_per_s{suffix}",
        JOBS / took_s,
        "1/s",
        JOBS,
        nodes=8,
        gpus=8,
        clients=CLIENTS,
        audit=True,
    )
    say(f"audit_lag_s{suffix}", lag_s, "s", 1)
    say(f"commits_per_job{suffix}", stored / JOBS, "commits", JOBS)
    for kind, cost in used.items():
        say(f"cpu_ms_per_job_{name}_{kind}", cost, "ms", JOBS)


def beside_slurm(replicas: int) -> None:
    """Print the jobs per second of both in turns, and their ratio."""
    suffix = "" if replicas == 1 else "_r3"
    try:
        with slurm.running() as other, running(replicas, nodes=8) as cluster:
            asyncio.run(run(cluster, TURN_JOBS // 2))
            figures = {
                f"slurm_jobs_per_s{suffix}": f"over_slurm{suffix}",
                f"slurm_array_jobs_per_s{suffix}": f"over_slurm_array{suffix}",
            }
            submitted, array = figures
            measure = {
                f"turn_jobs_per_s{suffix}": lambda: (
                    TURN_JOBS / asyncio.run(run(cluster, TURN_JOBS))[0]
                ),
                submitted: lambda: TURN_JOBS / slurm.throughput(other, TURN_JOBS, SUBMITTERS),
                array: lambda: TURN_JOBS / slurm.array(other, TURN_JOBS),
            }
            turns.in_turns(figures, measure, "1/s")
    except peers.Missing as error:
        turns.skipped(error)


if __name__ == "__main__":
    if peers.wants("slurm"):
        beside_slurm(1)
        beside_slurm(3)
        sys.exit()
    measure("embedded", 1)
    measure("r3", 3)
