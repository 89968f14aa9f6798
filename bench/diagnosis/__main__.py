"""Measure how often `muster diagnose` names the right rank first, and how long it takes.

A job of 32 Python ranks on 4 nodes runs steps with collectives in a ring. One fault is planted in a
random rank, and the job is diagnosed by the gateway of a real cluster: 8 kinds of faults, 20 seeds.
A table for people goes to stderr.
"""

import asyncio
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp

from bench.cluster import QUICK, Cluster, client, ended, quantile, running, say, submit

FAULTS: Final = ("skip", "sleep", "stop", "exit", "order", "loader", "lock", "link")
SEEDS: Final = 1 if QUICK else 20
NODES: Final = 4
LOCAL: Final = 8
WORLD: Final = NODES * LOCAL
MARK_S: Final = 180.0
LOOK_S: Final = 0.05
# Time for the other ranks to come to the collective.
SETTLE_S: Final = 0.7
ERRORS: Final = 500
# An agent looks at the counters of links every 15 s.
WATCH_S: Final = 16.0
LAUNCH: Final = str(Path(__file__).parent / "launch.py")
# Long enough that no job is diagnosed without a request; the agents watch links meanwhile.
ENVIRONMENT: Final = {"MUSTER_DIAGNOSE_AFTER_S": "3600"}


class Found(NamedTuple):
    """One diagnosis of a planted fault."""

    fault: str
    rank: int
    is_right: bool
    took_s: float
    answer: dict[str, Any]


class Links:
    """Plays errors of links into simulated devices, whose counters only rise."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.counts: dict[str, int] = {}

    async def begin(self, session: aiohttp.ClientSession) -> None:
        """Let every device count errors, and wait until its agent has read that."""
        async with session.get("/v1/gpus") as answer:
            gpus = (await answer.json())["gpus"]
        for gpu in gpus:
            self._play(gpu)
        await asyncio.sleep(WATCH_S)

    def _play(self, gpu: dict[str, Any]) -> None:
        count, address = self.counts.get(gpu["uuid"], 0), gpu["pcie_bus_id"]
        pipe = self.state / "services" / gpu["node_id"] / "driver-events"
        with pipe.open("w") as file:
            file.write(f"simulated {address} reading {count} link 3 replay\n")

    async def fail(self, session: aiohttp.ClientSession, job: str, rank: int) -> None:
        async with session.get(f"/v1/jobs/{job}") as answer:
            member = (await answer.json())["members"][rank // LOCAL]
        uuid = member["gpus"][rank % LOCAL]["uuid"]
        self.counts[uuid] = self.counts.get(uuid, 0) + ERRORS
        async with session.get(f"/v1/gpus/{uuid}") as answer:
            self._play(await answer.json())


async def diagnosed(
    session: aiohttp.ClientSession, links: Links, folder: Path, fault: str, chance: random.Random
) -> Found:
    """Run a job with one fault, and diagnose it."""
    rank = chance.randrange(WORLD)
    began = time.monotonic()
    mark = folder / f"{fault}-{time.monotonic_ns()}"
    arguments = (str(LOCAL), fault, str(rank), str(mark))
    job = await submit(
        session, sys.executable, LAUNCH, *arguments, nodes=NODES, gpus=LOCAL, name=fault
    )
    try:
        async with asyncio.timeout(MARK_S):
            while not mark.exists():
                await asyncio.sleep(LOOK_S)
        print(f"{fault} after {time.monotonic() - began:.1f} s", file=sys.stderr)
        if fault == "link":
            await links.fail(session, job, rank)
        await asyncio.sleep(SETTLE_S)
        began = time.monotonic()
        async with session.post(f"/v1/jobs/{job}/diagnoses") as answer:
            body = await answer.json()
            assert answer.status == 200, body
        took_s = time.monotonic() - began
        first = body["suspects"][0]["rank"] if body["suspects"] else None
        return Found(fault, rank, first == rank, took_s, body)
    finally:
        async with session.post(f"/v1/jobs/{job}/kill"):
            pass
        await ended(session, job)


async def measure(cluster: Cluster) -> list[Found]:
    links, found = Links(cluster.state), list[Found]()
    with tempfile.TemporaryDirectory() as folder:
        async with client(cluster) as session:
            await links.begin(session)
            for seed in range(SEEDS):
                chance = random.Random(seed)
                for fault in FAULTS:
                    found.append(await diagnosed(session, links, Path(folder), fault, chance))
                    show(found[-1])
    return found


def show(found: Found) -> None:
    right = "right" if found.is_right else "WRONG"
    sentence = found.answer["sentence"]
    text = f"{found.fault:7} rank {found.rank:2} {right} {found.took_s:5.2f} s  {sentence}"
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    with running(nodes=NODES, gpus=LOCAL, environment=ENVIRONMENT) as cluster:
        found = asyncio.run(measure(cluster))
    setting = {"ranks": WORLD, "nodes": NODES, "cpus": os.cpu_count()}
    for fault in FAULTS:
        own = [one.is_right for one in found if one.fault == fault]
        say("right_first_pct", 100 * sum(own) / len(own), "%", len(own), fault=fault, **setting)
    right = sum(one.is_right for one in found)
    say("right_first_pct", 100 * right / len(found), "%", len(found), fault="all", **setting)
    took = [one.took_s for one in found]
    say("diagnose_p50_s", quantile(took, 0.5), "s", len(took), **setting)
    say("diagnose_max_s", max(took), "s", len(took), **setting)


if __name__ == "__main__":
    main()
