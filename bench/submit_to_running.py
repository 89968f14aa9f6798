"""Time from a POST to the job's first moment on an idle cluster with audit, and each process's CPU
per job.

The job is `date`, which prints the time at which it runs. Jobs come one after the other. CPU covers
all services, from the gateway to the release. The client's own processor time is not counted. The
bench uses one server first, then three servers as a Raft group on this machine.

With PEER=slurm, a job of Muster and one of `srun` start in turns (`bench/peers/slurm.py`).
"""

import asyncio
import sys
import time

from bench import peers
from bench.cluster import QUICK, Cluster, client, ended, quantile, running, say, submit
from bench.peers import slurm, turns

JOBS = 60 if QUICK else 300
TURN_JOBS = 20 if QUICK else 60


async def latencies_ms(cluster: Cluster, jobs: int = JOBS) -> tuple[list[float], list[float]]:
    """POST sent -> 201, and POST sent -> the job's own time."""
    accepted, started = [], []
    async with client(cluster) as session:
        for _ in range(jobs):
            before_ns = time.time_ns()
            job = await submit(session, "date", "+%s%N")
            accepted.append((time.time_ns() - before_ns) / 1e6)
            await ended(session, job)
            async with session.get(f"/v1/jobs/{job}/output", params={"stream": "stdout"}) as answer:
                started.append((int(await answer.text()) - before_ns) / 1e6)
    return accepted, started


def measure(name: str, replicas: int) -> None:
    with running(replicas) as cluster:
        asyncio.run(latencies_ms(cluster))  # once to warm every process
        before = cluster.cpu_s()
        accepted, started = asyncio.run(latencies_ms(cluster))
        used = {
            kind: (seconds - before[kind]) * 1000 / JOBS
            for kind, seconds in cluster.cpu_s().items()
        }
    say(f"p50_ms_{name}", quantile(started, 0.5), "ms", JOBS, nodes=4, gpus=8, audit=True)
    say(f"p99_ms_{name}", quantile(started, 0.99), "ms", JOBS)
    say(f"accepted_p50_ms_{name}", quantile(accepted, 0.5), "ms", JOBS)
    say(f"accepted_p99_ms_{name}", quantile(accepted, 0.99), "ms", JOBS)
    for kind, cost in used.items():
        say(f"cpu_ms_per_job_{name}_{kind}", cost, "ms", JOBS)


def beside_slurm(replicas: int) -> None:
    """Print the median time to the job's first moment of both in turns, and their ratio."""
    suffix = "embedded" if replicas == 1 else "r3"
    try:
        with slurm.running() as other, running(replicas) as cluster:
            asyncio.run(latencies_ms(cluster))
            ratio = "over_srun" if replicas == 1 else "over_srun_r3"
            theirs = f"srun_p50_ms_{suffix}"
            measure = {
                f"turn_p50_ms_{suffix}": lambda: quantile(
                    asyncio.run(latencies_ms(cluster, TURN_JOBS))[1], 0.5
                ),
                theirs: lambda: quantile(
                    [slurm.to_running_ms(other) for _ in range(TURN_JOBS)], 0.5
                ),
            }
            turns.in_turns({theirs: ratio}, measure, "ms")
    except peers.Missing as error:
        turns.skipped(error)


if __name__ == "__main__":
    if peers.wants("slurm"):
        beside_slurm(1)
        beside_slurm(3)
        sys.exit()
    measure("embedded", 1)
    measure("r3", 3)
