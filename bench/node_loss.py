"""Time from the loss of a node to the first moment of its job elsewhere, and overlaps of attempts.

A job writes its attempt and the time to a file that all nodes share, a hundred times in a second.
Its node dies (agent, launcher, supervisors and job are killed) or is cut off: its connection to the
log passes through a proxy that stops forwarding, and everything on the node runs on. `overlap_s` is
how long two attempts wrote at the same time; negative: the time between them. First with the
lease profile `default`, then with `fast`; QUICK configures a second cluster with the times of
`fast`, because the change of a profile takes a lease.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp
import msgspec

from bench.cluster import QUICK, Cluster, children_of, client, quantile, running, say, submit
from bench.proxy import Proxy
from libs.common.timing import FAST_TIMING

TIMES: Final = 1 if QUICK else 20
NODES: Final = 3
WAIT_S: Final = 90.0
LOOK_S: Final = 0.02
KINDS: Final = ("kill", "partition")
# Nodes that are lost so often would be held back.
CALM: Final = {"MUSTER_HOLD_S": "0"}
QUICK_TIMES: Final = {
    f"MUSTER_{name.upper()}": str(value)
    for name, value in msgspec.structs.asdict(FAST_TIMING).items()
}
BEATS: Final = """
import os, sys, time
out = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
while True:
    at = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    os.write(out, f"{os.environ['MUSTER_ATTEMPT']} {at}\\n".encode())
    time.sleep(0.01)
"""


class Loss(NamedTuple):
    """The seconds until the next attempt wrote, and those for which two wrote together."""

    took_s: float
    overlap_s: float


class Beats:
    """The marks that the attempts of the job wrote: the first and the last time of each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.read_bytes = 0
        self.seen: dict[int, tuple[int, int]] = {}

    def read(self) -> dict[int, tuple[int, int]]:
        with contextlib.suppress(FileNotFoundError), self.path.open("rb") as file:
            file.seek(self.read_bytes)
            whole, _, _ = file.read().rpartition(b"\n")
            self.read_bytes += len(whole) + bool(whole)
            for line in whole.splitlines():
                attempt, at = map(int, line.split())
                first, _ = self.seen.get(attempt, (at, at))
                self.seen[attempt] = (first, at)
        return self.seen


async def until(holds: Callable[[], Any]) -> None:
    end = time.monotonic() + WAIT_S
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(f"nothing happened within {WAIT_S} s")
        await asyncio.sleep(LOOK_S)


async def shown(session: aiohttp.ClientSession, path: str) -> dict[str, Any]:
    async with session.get(path) as answer:
        found: dict[str, Any] = await answer.json()
        return found


async def whole(session: aiohttp.ClientSession) -> None:
    """Wait until all nodes are healthy."""
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        nodes = (await shown(session, "/v1/nodes"))["nodes"]
        if sum(node["state"] == "healthy" and not node["withheld"] for node in nodes) == NODES:
            return
        await asyncio.sleep(0.1)
    raise TimeoutError(f"not all nodes were healthy again within {WAIT_S} s")


def below(pid: int) -> list[int]:
    """Return a process and all below it, the deepest first."""
    with contextlib.suppress(OSError):
        return [each for child in children_of(pid) for each in below(child)] + [pid]
    return [pid]


class Losses:
    """The losses of one cluster, one after the other."""

    def __init__(self, cluster: Cluster, session: aiohttp.ClientSession, beats: Beats) -> None:
        self.cluster, self.session, self.beats = cluster, session, beats

    async def lose(self, job: str, kind: str) -> Loss:
        """Lose the job's node, and restore it once the next attempt wrote."""
        await whole(self.session)
        found = await shown(self.session, f"/v1/jobs/{job}")
        name, attempt = found["node_ids"][0], found["attempt"]
        await until(lambda: attempt in self.beats.read())
        began_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        if kind == "kill":
            for pid in below(self.cluster.processes[name].pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.cluster.processes[name].wait()
        else:
            self.cluster.proxies[name].cut = True
        await until(lambda: attempt + 1 in self.beats.read())
        (_, last), (first, _) = self.beats.seen[attempt], self.beats.seen[attempt + 1]
        if kind == "kill":
            self.cluster.again(name)
        else:
            await asyncio.sleep(1.0)  # an old attempt that still writes is seen
            last = self.beats.read()[attempt][1]
            self.cluster.proxies[name].cut = False
        return Loss((first - began_ns) / 1e9, (last - first) / 1e9)


async def choose(session: aiohttp.ClientSession, profile: str) -> None:
    """Choose a lease profile and wait until every agent goes by it."""
    async with session.post("/v1/leases", json={"profile": profile}) as answer:
        assert answer.status == 202, await answer.text()
    end = time.monotonic() + WAIT_S
    while not (await shown(session, "/v1/leases"))["settled"] and time.monotonic() < end:
        await asyncio.sleep(0.1)


async def lost(cluster: Cluster, kinds: Sequence[str], chosen: str = "") -> list[Loss]:
    """Lose the node of a job again and again, after the choice of a profile if one is named."""
    beats = Beats(cluster.state / f"beats-{chosen}")
    async with client(cluster) as session:
        if chosen:
            await choose(session, chosen)
        losses = Losses(cluster, session, beats)
        job = await submit(session, "python3", "-c", BEATS, str(beats.path), gpus=1)
        await until(lambda: 1 in beats.read())
        return [await losses.lose(job, kind) for kind in kinds for _ in range(TIMES)]


def show(slow: list[float], fast: list[float], overlaps_s: list[float]) -> None:
    say("p50_s", quantile(slow, 0.5), "s", len(slow), nodes=NODES, profile="default")
    say("max_s", max(slow), "s", len(slow), nodes=NODES, profile="default")
    say("fast_p50_s", quantile(fast, 0.5), "s", len(fast), nodes=NODES, profile="fast")
    say("fast_max_s", max(fast), "s", len(fast), nodes=NODES, profile="fast")
    say("overlap_s", max(overlaps_s), "s", len(overlaps_s), nodes=NODES)


def main() -> None:
    with running(nodes=NODES, gpus=2, proxied=Proxy, environment=CALM) as cluster:
        slow = asyncio.run(lost(cluster, ["partition"] if QUICK else KINDS))
        fast = [] if QUICK else asyncio.run(lost(cluster, KINDS, "fast"))
    if QUICK:
        with running(nodes=NODES, gpus=2, proxied=Proxy, environment=CALM | QUICK_TIMES) as cluster:
            fast = asyncio.run(lost(cluster, KINDS))
    show(
        [loss.took_s for loss in slow],
        [loss.took_s for loss in fast],
        [loss.overlap_s for loss in (*slow, *fast)],
    )


if __name__ == "__main__":
    main()
