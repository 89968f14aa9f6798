"""Jobs while every control service is down: schedulers, quota, audit and gateway are killed.

Fifty jobs run on eight nodes. Each writes the time to a file of its own, a hundred times in ten
seconds. The services are killed (SIGKILL) and stay down for MINUTES (10; QUICK: 1), while the
nodes extend each other's leases. `lost` counts jobs that are not in their first attempt afterwards
or stopped writing for PAUSE_S. Then the same again, with two nodes cut off from the log meanwhile,
and not from each other: their leases are extended too, until the services are back. Then their jobs
must stop (`stopped_max_s` after the kill), start elsewhere, and never write at the same time as the
attempt after them (`overlap_s`; negative: the time between them).
"""

import asyncio
import os
import time
from pathlib import Path
from typing import Any, Final

import aiohttp

from bench.cluster import QUICK, Cluster, client, running, say, submit
from bench.proxy import Proxy

DOWN_S: Final = 60 * float(os.environ.get("MINUTES") or (1 if QUICK else 10))
# Without the nodes that are cut off there is room for all jobs.
NODES, GPUS, JOBS, CUT = 8, 9, 50, 2
WAIT_S: Final = 120.0
LOOK_S: Final = 0.5
# A job that wrote nothing for this long has been stopped, or its machine was too busy.
PAUSE_S: Final = 5.0
CONTROL: Final = ("scheduler", "quota", "audit", "gateway")
BEATS: Final = """
import os, sys, time
out = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
while True:
    at = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    os.write(out, f"{os.environ['MUSTER_ATTEMPT']} {at}\\n".encode())
    time.sleep(0.1)
"""
Beats = dict[int, list[int]]


def beats(path: Path) -> Beats:
    """Return the times at which each attempt of a job wrote."""
    found: Beats = {}
    for line in path.read_text().splitlines():
        attempt, at = map(int, line.split())
        found.setdefault(attempt, []).append(at)
    return found


def pause_s(times: list[int], since_ns: int) -> float:
    """Return the longest time without a beat, from the last one before `since_ns` until now."""
    late = [at for at in times if at >= since_ns]
    ends = [*late, time.clock_gettime_ns(time.CLOCK_BOOTTIME)]
    starts = [max([at for at in times if at < since_ns], default=since_ns), *late]
    return max((end - start) / 1e9 for start, end in zip(starts, ends, strict=True))


async def jobs(session: aiohttp.ClientSession) -> dict[str, dict[str, Any]]:
    """Return the jobs by id; none from a gateway that has not yet read the log."""
    async with session.get("/v1/jobs", params={"limit": "1000"}) as answer:
        body = await answer.json()
        return {job["id"]: job for job in body["jobs"]} if answer.status == 200 else {}


async def all_run(session: aiohttp.ClientSession) -> dict[str, dict[str, Any]]:
    """Wait until every job runs; return them."""
    end = time.monotonic() + WAIT_S
    found: dict[str, dict[str, Any]] = {}
    while time.monotonic() < end:
        try:
            found = await jobs(session)
        except aiohttp.ClientError:
            found = {}
        if [job["state"] for job in found.values()] == ["running"] * JOBS:
            return found
        await asyncio.sleep(LOOK_S)
    raise TimeoutError(f"{len(found)} jobs, not all running within {WAIT_S} s")


class Outage:
    """One cluster whose control services go down and come back, with the files of its jobs."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.files: dict[str, Path] = {}

    async def submit(self, session: aiohttp.ClientSession) -> None:
        for number in range(JOBS):
            path = self.cluster.state / f"beats-{number}"
            job = await submit(session, "python3", "-c", BEATS, str(path), gpus=1)
            self.files[job] = path

    def kill(self) -> list[str]:
        """Kill every control service; return their names."""
        names = [name for name in self.cluster.processes if name.partition("-")[0] in CONTROL]
        for name in names:
            self.cluster.processes[name].kill()
        return names

    async def down(self, cut: list[str]) -> int:
        """Keep the services down, with these nodes cut off; return when the outage began."""
        began_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        names = self.kill()
        for node in cut:
            self.cluster.proxies[node].cut = True
        await asyncio.sleep(DOWN_S)
        for name in names:
            self.cluster.start_again(name)
        return began_ns

    async def until_written(self, attempt: int, jobs: set[str]) -> None:
        """Wait until that attempt of each of the jobs has written."""
        end = time.monotonic() + WAIT_S
        missing = jobs
        while missing and time.monotonic() < end:
            missing = {
                job
                for job in missing
                if not self.files[job].exists() or attempt not in beats(self.files[job])
            }
            await asyncio.sleep(LOOK_S)
        if missing:
            raise TimeoutError(f"attempt {attempt} of {len(missing)} jobs wrote nothing")

    def stopped(self, job: dict[str, Any], since_ns: int) -> bool:
        """Return whether a job that should run on has not."""
        return job["attempt"] != 1 or pause_s(beats(self.files[job["id"]])[1], since_ns) > PAUSE_S


async def measure(cluster: Cluster) -> None:
    outage = Outage(cluster)
    async with client(cluster) as session:
        await outage.submit(session)
        await all_run(session)
        await outage.until_written(1, set(outage.files))
        began_ns = await outage.down([])
        found = await all_run(session)
        lost = sum(outage.stopped(job, began_ns) for job in found.values())
        say("lost", lost, "jobs", JOBS, down_s=DOWN_S, nodes=NODES)
        pauses_s = [pause_s(beats(outage.files[job])[1], began_ns) for job in found]
        say("pause_max_s", max(pauses_s), "s", JOBS, down_s=DOWN_S, nodes=NODES)
        say("attempts", max(job["attempt"] for job in found.values()), "attempts", JOBS)

        cut = sorted({node for job in found.values() for node in job["node_ids"]})[:CUT]
        doomed = {job for job, seen in found.items() if seen["node_ids"][0] in cut}
        began_ns = await outage.down(cut)
        await outage.until_written(2, doomed)
        found = await all_run(session)
        rest = [job for name, job in found.items() if name not in doomed]
        lost = sum(outage.stopped(job, began_ns) for job in rest)
        say("lost_beside_cut_nodes", lost, "jobs", len(rest), down_s=DOWN_S, cut=CUT)
        first, last, overlap_s = [], [], []
        for job in doomed:
            seen = beats(outage.files[job])
            first.append((seen[1][-1] - began_ns) / 1e9)
            last.append(found[job]["attempt"])
            overlap_s.append((seen[1][-1] - seen[2][0]) / 1e9)
        say("stopped_max_s", max(first), "s", len(doomed), cut=CUT)
        say("attempts", max(last), "attempts", len(doomed), cut=CUT)
        say("overlap_s", max(overlap_s), "s", len(doomed), cut=CUT)


def main() -> None:
    with running(nodes=NODES, gpus=GPUS, proxied=Proxy) as cluster:
        asyncio.run(measure(cluster))


if __name__ == "__main__":
    main()
