"""Elements per second of a short array beside an ordinary array of the same size, and CPU time per
element by kind of process.

Each element runs `true` on one of two slots of one node, with audit. The time goes from the request
to the end of the array. `bare` is the baseline: one Python process for each slot that only spawns
the program and waits for it.
"""

import asyncio
import os
import time
from typing import Any

import aiohttp

from bench.cluster import QUICK, Cluster, client, ended, running, say, submit

ELEMENTS = 400 if QUICK else 1_000
LONG = 6_000 if QUICK else 30_000
SLOTS = 2
TRUE = "/bin/true"


async def run(session: aiohttp.ClientSession, elements: int, short: bool) -> float:
    """Run an array to its end, and return the seconds that it took."""
    began = time.monotonic()
    fields: dict[str, Any] = {
        "gpus": 0,
        "cpus": 0.5,
        "array": f"0-{elements - 1}%{SLOTS}",
        "short": short,
    }
    job = await submit(session, TRUE, **fields)
    await ended(session, job)
    took_s = time.monotonic() - began
    async with session.get(f"/v1/jobs/{job}") as answer:
        shown = await answer.json()
    if shown["array"]["states"] != {"completed": elements}:
        raise RuntimeError(f"the array ended otherwise: {shown['array']}")
    return took_s


def measure(cluster: Cluster, name: str, elements: int, short: bool) -> float:
    async def one() -> float:
        async with client(cluster) as session:
            await run(session, 40, short)  # once to warm every process
            cluster_before.update(cluster.cpu_s())
            return await run(session, elements, short)

    cluster_before: dict[str, float] = {}
    took_s = asyncio.run(one())
    rate = elements / took_s
    say(f"{name}_per_s", rate, "elements/s", elements, slots=SLOTS, audit=True)
    for kind, seconds in cluster.cpu_s().items():
        used = (seconds - cluster_before[kind]) * 1_000 / elements
        say(f"{name}_cpu_ms_{kind}", used, "ms", elements)
    return rate


def bare(elements: int) -> float:
    """Return how many programs per second this machine starts and awaits on as many slots."""
    began = time.monotonic()
    pids = []
    for _ in range(SLOTS):
        pid = os.fork()
        if not pid:
            for _ in range(elements // SLOTS):
                os.waitpid(os.posix_spawn(TRUE, [TRUE], {}), 0)
            os._exit(0)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)
    return elements / (time.monotonic() - began)


def main() -> None:
    with running(1, nodes=1) as cluster:
        ordinary = measure(cluster, "ordinary", ELEMENTS, short=False)
        short = measure(cluster, "short", LONG, short=True)
    spawned = bare(LONG)
    say("bare_per_s", spawned, "programs/s", LONG, slots=SLOTS)
    say("over_ordinary", short / ordinary, "ratio", LONG)
    say("over_bare", short / spawned, "ratio", LONG)


if __name__ == "__main__":
    main()
