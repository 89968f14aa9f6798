"""Time from a POST to the job's first moment on an idle cluster with audit, and each process's CPU
per job.

The job is `date`, which prints the time at which it runs. Jobs come one after the other. CPU covers
all services, from the gateway to the release. The client's own processor time is not counted. The
bench uses one server first, then three servers as a Raft group on this machine.
"""

import asyncio
import time

from bench.cluster import QUICK, Cluster, client, ended, quantile, running, say, submit

JOBS = 60 if QUICK else 300


async def latencies_ms(cluster: Cluster) -> tuple[list[float], list[float]]:
    """POST sent -> 201, and POST sent -> the job's own time."""
    accepted, started = [], []
    async with client(cluster) as session:
        for _ in range(JOBS):
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


if __name__ == "__main__":
    measure("embedded", 1)
    measure("r3", 3)
