"""Time to list 10,240 GPUs with the free part of each, from the scheduler and over HTTP.

The real scheduler and the real gateway run in one process, over the log and the bus in memory. The
scheduler folds 1,280 nodes and places jobs on half of their devices.

`scheduler_*` is a request on the scheduler's subject, from the question to the bytes of the answer.
`first` is the first request after a replay. `follow` is the cost of keeping the answer ready while
facts are folded and every node has changed. `gateway_*` are requests on loopback through the whole
edge; the client reads every page.

The client runs in the same thread as both services. On a shared machine only the CPU figures belong
to the program alone.
"""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import aiohttp
import uvloop

from bench.cluster import QUICK, quantile, say
from bench.decision import machine
from libs.common import facts as f
from libs.common import subjects
from libs.common.change import Change
from libs.common.facts import AnyFact, Commit
from libs.common.leadership.leading import give_signs
from libs.common.model import JobId, JobSpec
from libs.common.process.clock import SystemClock
from libs.common.settings.settings import Settings
from libs.common.state.inventory import Stocks
from libs.common.transport.bus_memory import MemoryBus
from libs.common.transport.kv import MemoryOutputs
from libs.common.transport.log_memory import MemoryLog, MemoryStream
from libs.common.transport.snapshot_store import MemorySnapshots
from services.api_gateway.access.auth import hash_key
from services.api_gateway.gateway import Gateway
from services.api_gateway.service import server_for
from services.scheduler.service import Scheduler

GPUS: Final = 10_240
HELD: Final = GPUS // 2
ASKED: Final = 50 if QUICK else 500
LISTED: Final = 3 if QUICK else 20
JOBS_A_COMMIT: Final = 500
KEY: Final = "bench"
PLACED_S: Final = 60.0
ANSWER_S: Final = 5.0
LOOK_S: Final = 0.05


def record(stream: MemoryStream, subject: str, facts: list[AnyFact], epoch: int = 0) -> None:
    """Append one commit as its writer would."""
    last = stream.last_by_subject.get(subject)
    number, expected = (f.decode(last.data).number + 1, last.seq) if last is not None else (1, 0)
    commit = Commit(
        version=f.VERSION,
        min_reader=f.VERSION,
        writer=subject,
        number=number,
        epoch=epoch,
        at_ns=time.time_ns(),
        seen=expected,
        facts=tuple(facts),
    )
    stream.store(subject, f.encode(commit), expected)


def fill(stream: MemoryStream) -> None:
    """Record the nodes, and jobs of one GPU each for half of the devices."""
    for number in range(GPUS // 8):
        node = machine(number)
        record(stream, subjects.node(node.node_id), [node], epoch=1)
    for first in range(0, HELD, JOBS_A_COMMIT):
        jobs = [JobId(f"j{number}") for number in range(first, min(HELD, first + JOBS_A_COMMIT))]
        spec = JobSpec(command=("true",), start_s=86_400)
        record(
            stream,
            subjects.gateway("users"),
            [f.JobSubmitted(job_id=job, spec=spec) for job in jobs],
        )
        record(stream, subjects.QUOTA, [f.JobAdmitted(job_id=job) for job in jobs])


@asynccontextmanager
async def scheduling(stream: MemoryStream, bus: MemoryBus) -> AsyncIterator[Scheduler]:
    """Run a scheduler until the end of the block, once it has placed all jobs."""
    stop = asyncio.Event()
    scheduler = Scheduler(
        log=MemoryLog(stream),
        bus=bus,
        clock=SystemClock(),
        settings=Settings(cluster_id="bench"),
        signs=lambda leading: give_signs(leading, bus),
        store=MemorySnapshots(),
    )
    running = asyncio.create_task(scheduler.run(stop))
    try:
        async with asyncio.timeout(PLACED_S):
            while sum(bool(view.holds) for view in scheduler.acked.gpus.values()) < HELD:
                assert not running.done(), running.exception()
                await asyncio.sleep(LOOK_S)
        yield scheduler
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@asynccontextmanager
async def serving(stream: MemoryStream, bus: MemoryBus, folder: Path) -> AsyncIterator[str]:
    """Run a gateway over HTTP and yield its URL."""
    keys = folder / "keys"
    keys.write_text(f"{hash_key(KEY)} bench\n")
    gateway = Gateway(
        log=MemoryLog(stream),
        bus=bus,
        clock=SystemClock(),
        settings=Settings(api_keys_file=str(keys), instance="a"),
        outputs=MemoryOutputs(),
        store=MemorySnapshots(),
    )
    server = server_for(gateway, "127.0.0.1", 0)
    tasks = [asyncio.create_task(gateway.run()), asyncio.create_task(server.serve())]
    try:
        while not (server.started and gateway.caught_up):
            assert not any(task.done() for task in tasks), [
                task.exception() for task in tasks if task.done()
            ]
            await asyncio.sleep(LOOK_S)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = server.force_exit = True
        tasks[0].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def timed(
    name: str, count: int, ask: Callable[[], Awaitable[int]], **setting: object
) -> None:
    """Print the median and the 99th percentile, by the clock and by this thread's CPU; `ask` gives
    how many bytes came.
    """
    walls, cpus, size = [], [], await ask()
    for _ in range(count):
        began, used = time.perf_counter(), time.thread_time()
        await ask()
        walls.append((time.perf_counter() - began) * 1e3)
        cpus.append((time.thread_time() - used) * 1e3)
    for kind, times in (("", walls), ("cpu_", cpus)):
        for label, part in (("p50", 0.5), ("p99", 0.99)):
            say(
                f"{name}_{kind}{label}_ms",
                quantile(times, part),
                "ms",
                count,
                gpus=GPUS,
                held=HELD,
                bytes=size,
                **setting,
            )


async def main() -> None:
    """Print all figures."""
    stream, bus = MemoryStream(), MemoryBus()
    fill(stream)
    async with scheduling(stream, bus) as scheduler:
        await at_the_scheduler(scheduler, bus)
        with tempfile.TemporaryDirectory() as folder:
            async with serving(stream, bus, Path(folder)) as url:
                await over_http(url)


async def at_the_scheduler(scheduler: Scheduler, bus: MemoryBus) -> None:
    nodes = list(scheduler.acked.nodes)

    async def asked() -> int:
        return len(await bus.request(subjects.ask_scheduler("inventory"), b"", ANSWER_S))

    def first() -> Awaitable[int]:
        scheduler.stocks = Stocks()
        return asked()

    async def followed() -> int:
        scheduler.stocks.follow(scheduler.acked, (Change((), tuple(nodes)),))
        return 0

    await timed("scheduler_inventory", ASKED, asked)
    await timed("scheduler_inventory_first", ASKED, first)
    await timed("scheduler_inventory_follow", ASKED, followed, nodes_changed=len(nodes))


async def over_http(url: str) -> None:
    headers = {"authorization": f"Bearer {KEY}"}
    async with aiohttp.ClientSession(url, headers=headers) as session:
        for path in ("inventory", "nodes", "gpus"):

            async def listed(path: str = path) -> int:
                size, after = 0, ""
                while True:
                    async with session.get(f"/v1/{path}?after={after}") as answer:
                        data = await answer.read()
                        assert answer.status == 200, data[:300]
                    size += len(data)
                    after = (await answer.json())["next"]
                    if after is None:
                        return size

            await timed(f"gateway_{path}", LISTED, listed)


if __name__ == "__main__":
    uvloop.run(main())
