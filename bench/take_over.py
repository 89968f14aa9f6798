"""Time from the death of the leading scheduler to the next placement, under load.

Two schedulers run as `muster up --schedulers 2` runs them. The leader is killed (SIGKILL), or
stopped (SIGSTOP, and continued a second after another one leads), and started again as its service
manager would. A reader of the log takes the time at which it gets the first JobPlaced of the next
term. `p50_s` and `max_s` are for kills, at several lengths of the log; `flat` is the ratio of the
medians at the longest and the shortest. `terms_per_death` must be 1.

With three servers the server that leads the stream is killed together with the leader; then the
servers' election decides (`with_stream_leader_max_s`).

With PEER=slurm, Slurm's primary controller is killed too, with the backup's timeout at Slurm's
default and at its shortest useful value (`bench/peers/slurm_backup.py`).
"""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp

from bench import peers
from bench.cluster import QUICK, Cluster, client, quantile, running, say, submit
from bench.peers import slurm_backup, turns
from libs.common import facts as f
from libs.common import subjects
from libs.common.model import TenantId
from libs.common.process.clock import SystemClock
from libs.common.transport.connection_nats import Client, connect
from libs.common.transport.log_jetstream import JetStreamLog
from libs.common.transport.writer import Writer
from libs.embedded import identity, permissions, plan

LENGTHS: Final = (500, 4_000) if QUICK else (500, 10_000, 42_000)
KILLS: Final = 3 if QUICK else 20
PAUSES: Final = 2 if QUICK else 20
WITH_SERVER: Final = 1 if QUICK else 5
# How long Slurm's backup controller waits for the primary one: the shortest, and the default.
SLURM_TIMEOUTS_S: Final = (10,) if QUICK else (10, 120)
SLURM_ROUNDS: Final = 1 if QUICK else 3
STOPPED_S: Final = 1.0
SUBMIT_EVERY_S: Final = 0.02
WITHIN_S: Final = 60.0
TENANTS: Final = 200
SCHEDULERS: Final = tuple(plan.members(plan.SCHEDULER, 2))
# The gateway whose key fills the log; it does not run.
FILLER: Final = "gateway-b"


class Watcher:
    """The observations of a reader of the log: terms, and the first placement of each."""

    def __init__(self, log: JetStreamLog) -> None:
        self.log = log
        self.terms: list[tuple[int, str]] = []
        self.placed: dict[int, float] = {}

    async def run(self) -> None:
        async for batch in self.log.read(0):
            now = time.monotonic()
            for entry in batch:
                if entry.subject != subjects.SCHEDULER:
                    continue
                commit = f.decode(entry.data)
                for fact in commit.facts:
                    if isinstance(fact, f.TermBegan):
                        self.terms.append((entry.seq, fact.instance))
                    elif isinstance(fact, f.JobPlaced):
                        self.placed.setdefault(commit.epoch, now)

    def leader(self) -> str:
        """Return the name of the process that leads."""
        return SCHEDULERS["ab".index(self.terms[-1][1])]

    async def next_placement(self, after: int, since: float) -> float:
        """Return the seconds from `since` to the first placement of a term after `after`."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                for epoch, at in self.placed.items():
                    if epoch > after:
                        return at - since
                await asyncio.sleep(0.005)


# Ends the process of the leader that the watcher has seen.
End = Callable[[int, Watcher], Coroutine[Any, Any, None]]


@asynccontextmanager
async def watching(cluster: Cluster) -> AsyncIterator[tuple[Watcher, Client]]:
    """Follow the log beside the block."""
    seed = identity.seed_file(cluster.state / "keys", permissions.OPERATOR).read_bytes().strip()
    servers = cluster.added["MUSTER_NATS"].split(",")
    connection = await connect(servers, permissions.OPERATOR, seed)
    watcher = Watcher(JetStreamLog(connection))
    task = asyncio.create_task(watcher.run())
    try:
        while not watcher.terms:
            await asyncio.sleep(0.01)
        yield watcher, connection
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await connection.close()


@asynccontextmanager
async def loaded(session: aiohttp.ClientSession) -> AsyncIterator[None]:
    """Submit jobs all the time beside the block."""

    async def load() -> None:
        while True:
            try:
                await submit(session, "true")
            except (aiohttp.ClientError, AssertionError, KeyError):
                pass  # while the log's servers elect
            await asyncio.sleep(SUBMIT_EVERY_S)

    task = asyncio.create_task(load())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def fill(cluster: Cluster, commits: int) -> None:
    """Lengthen the log to so many commits, which change tenants."""
    seed = identity.seed_file(cluster.state / "keys", FILLER).read_bytes().strip()
    connection = await connect(cluster.added["MUSTER_NATS"].split(","), FILLER, seed)
    log = JetStreamLog(connection)
    writer = Writer(log, SystemClock(), subjects.gateway("b"), lambda: 0)
    await writer.attach()
    for number in range(commits - (await log.bounds())[1]):
        name = TenantId(f"t{number % TENANTS}")
        await writer.commit([f.TenantSet(tenant=name, weight=1 + number % 7)])
    await connection.close()


async def following(cluster: Cluster, name: str, said_before: int) -> None:
    """Wait until the process follows the log; its log had so many bytes before it began."""
    async with asyncio.timeout(WITHIN_S):
        while not says(cluster.specs[name].log, said_before):
            await asyncio.sleep(0.02)
    await asyncio.sleep(0.3)  # some answers of the leader


def says(log: Path, said_before: int) -> bool:
    return b"follows the log" in log.read_bytes()[said_before:]


async def strike(cluster: Cluster, watcher: Watcher, end: End) -> float:
    """End the leader, and return the seconds to the next placement when the other follows again."""
    name, after = watcher.leader(), watcher.terms[-1][0]
    size = cluster.specs[name].log.stat().st_size
    since = time.monotonic()
    ending = asyncio.create_task(end(cluster.processes[name].pid, watcher))
    took = await watcher.next_placement(after, since)
    await ending
    await asyncio.to_thread(cluster.start_again, name)
    await following(cluster, name, size)
    return took


async def kill(pid: int, watcher: Watcher) -> None:
    os.kill(pid, signal.SIGKILL)


async def stop(pid: int, watcher: Watcher) -> None:
    """Stop the process, and let it go on when another one leads."""
    count = len(watcher.terms)
    os.kill(pid, signal.SIGSTOP)
    try:
        async with asyncio.timeout(WITHIN_S):
            while len(watcher.terms) == count:
                await asyncio.sleep(0.01)
        await asyncio.sleep(STOPPED_S)
    finally:
        os.kill(pid, signal.SIGCONT)


async def measure() -> None:
    """Measure kills at each length of the log, then stops at the last."""
    medians, everything = [], []
    with running(gateways=2, schedulers=2) as cluster:
        cluster.processes["gateway-b"].terminate()
        async with client(cluster) as session, watching(cluster) as (watcher, _):
            for length in LENGTHS:
                await fill(cluster, length)
                took = await rounds(cluster, session, watcher, kill, KILLS)
                medians.append(quantile(took, 0.5))
                everything += took
                say("p50_s", medians[-1], "s", KILLS, commits=length, death="kill")
                say("max_s", max(took), "s", KILLS, commits=length, death="kill")
            took = await rounds(cluster, session, watcher, stop, PAUSES)
            say("paused_p50_s", quantile(took, 0.5), "s", PAUSES, commits=LENGTHS[-1])
            say("paused_max_s", max(took), "s", PAUSES, commits=LENGTHS[-1])
            deaths = KILLS * len(LENGTHS) + PAUSES
            say("terms_per_death", (len(watcher.terms) - 1) / deaths, "", deaths)
    say("flat", medians[-1] / medians[0], "", len(everything), commits=list(LENGTHS))


async def rounds(
    cluster: Cluster,
    session: aiohttp.ClientSession,
    watcher: Watcher,
    end: End,
    count: int,
) -> list[float]:
    async with loaded(session):
        return [await strike(cluster, watcher, end) for _ in range(count)]


async def measure_with_server() -> None:
    """Kill the stream's leader among three servers together with the leading scheduler."""
    took: list[float] = []
    for _ in range(WITH_SERVER):
        with running(replicas=3, schedulers=2, audit=False) as cluster:
            async with (
                client(cluster) as session,
                watching(cluster) as (watcher, connection),
                loaded(session),
            ):
                await asyncio.sleep(1.0)
                server = await stream_leader(connection)
                name, after = watcher.leader(), watcher.terms[-1][0]
                since = time.monotonic()
                for each in (name, server):
                    os.kill(cluster.processes[each].pid, signal.SIGKILL)
                took.append(await watcher.next_placement(after, since))
    say("with_stream_leader_max_s", max(took), "s", len(took), servers=3)


async def stream_leader(connection: Client) -> str:
    """Return the process of the server that leads the stream."""
    info = await connection.jetstream().stream_info(subjects.STREAM)
    number = int(str(info.cluster.leader).rpartition("-")[2]) if info.cluster else 1
    return f"nats-{number - 1}"


async def main() -> None:
    """The benchmark."""
    beside_slurm = peers.wants("slurm")
    await measure()
    await measure_with_server()
    if beside_slurm:
        await asyncio.to_thread(measure_slurm)


def measure_slurm() -> None:
    """Measure the take-over by Slurm's backup controller."""
    try:
        for timeout_s in SLURM_TIMEOUTS_S:
            slurm_backup.measure(timeout_s, SLURM_ROUNDS)
    except peers.Missing as error:
        turns.skipped(error)


if __name__ == "__main__":
    asyncio.run(main())
