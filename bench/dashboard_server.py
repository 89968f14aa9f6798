"""The server of `bench.dashboard`: a real gateway over a log in memory with a large cluster.

It prints its URL and key as one line of JSON, then obeys lines on its standard input: `updates N`
records N changes of random devices in each second, `quiet` none.
"""

import asyncio
import json
import random
import secrets
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from libs.common import facts as f
from libs.common import subjects
from libs.common.facts import AnyFact, Commit
from libs.common.model import Gpu, GpuHold, GpuId, JobId, JobSpec, Member, NodeId, TenantId
from libs.common.process.clock import SystemClock
from libs.common.settings.settings import Settings
from libs.common.transport.bus_memory import MemoryBus
from libs.common.transport.kv import MemoryOutputs
from libs.common.transport.log_memory import MemoryLog
from libs.common.transport.snapshot_store import MemorySnapshots
from libs.embedded.identity import vault_key_file
from services.api_gateway.access.auth import hash_key
from services.api_gateway.gateway import Gateway
from services.api_gateway.service import server_for

GPUS_PER_NODE = 8
FACTS_PER_COMMIT = 100
TENANTS = ("research", "vision", "speech", "robotics", "chemistry", "weather")
GIB = 1 << 30
POLL_S = 0.02


class Large:
    """The log of a large cluster: all GPUs are in use, and the other jobs wait."""

    def __init__(self, nodes: int, jobs: int) -> None:
        self.log = MemoryLog(idle_s=0.05)
        self.clock = SystemClock()
        self.dice = random.Random(1)
        self.nodes = nodes
        self.jobs = jobs
        self.numbers: dict[str, tuple[int, int]] = {}
        self.epoch = 0

    async def write(self, subject: str, facts: Iterable[AnyFact], epoch: int = 0) -> int:
        number, last = self.numbers.get(subject, (0, 0))
        commit = Commit(
            version=f.VERSION,
            min_reader=f.VERSION,
            writer=subject,
            number=number + 1,
            epoch=epoch,
            at_ns=self.clock.wall_ns(),
            seen=last,
            facts=tuple(facts),
        )
        seq = await self.log.append(subject, f.encode(commit), last)
        self.numbers[subject] = (number + 1, seq)
        return seq

    async def fill(self) -> None:
        self.epoch = await self.write(subjects.SCHEDULER, [f.TermBegan(instance="bench")])
        for number in range(self.nodes):
            await self.write(subjects.node(node(number)), [registered(number)], epoch=1)
        for numbers in batched(range(self.jobs), FACTS_PER_COMMIT):
            ids = [job(number) for number in numbers]
            await self.write(subjects.gateway("bench"), map(self.submitted, numbers))
            await self.write(subjects.QUOTA, [f.JobAdmitted(job_id=each) for each in ids])
            queued = [f.JobQueued(job_id=each) for each in ids]
            await self.write(subjects.SCHEDULER, queued, self.epoch)
        devices = self.nodes * GPUS_PER_NODE
        for numbers in batched(range(min(devices, self.jobs)), GPUS_PER_NODE):
            await self.write(subjects.SCHEDULER, map(placed, numbers), self.epoch)
            await self.write(subjects.node(node(numbers[0] // 8)), map(started, numbers), epoch=1)

    def submitted(self, number: int) -> f.JobSubmitted:
        spec = JobSpec(command=("python", "train.py"), name=f"train-{number}")
        tenant = TenantId(TENANTS[number // GPUS_PER_NODE % len(TENANTS)])
        return f.JobSubmitted(
            job_id=job(number), spec=spec, tenant=tenant, user=f"user-{number % 40}"
        )

    async def update(self) -> None:
        """Record that a random device became degraded, or recovered."""
        number = self.dice.randrange(self.nodes)
        uuid = device(number, self.dice.randrange(GPUS_PER_NODE))
        fact: AnyFact = (
            f.GpuFaulted(node_id=node(number), uuid=uuid, health="degraded", reason="thermal")
            if self.dice.random() < 0.5
            else f.GpuRecovered(node_id=node(number), uuid=uuid)
        )
        await self.write(subjects.node(node(number)), [fact], epoch=1)


def batched(numbers: range, size: int) -> Iterator[range]:
    for first in range(0, len(numbers), size):
        yield numbers[first : first + size]


def node(number: int) -> NodeId:
    return NodeId(f"node-{number}")


def job(number: int) -> JobId:
    return JobId(f"j{number:010d}")


def device(number: int, index: int) -> GpuId:
    return GpuId(f"GPU-{node(number)}-{index}")


def registered(number: int) -> f.NodeRegistered:
    gpus = tuple(
        Gpu(device(number, index), index, vendor="nvidia", model="H100", memory_bytes=80 * GIB)
        for index in range(GPUS_PER_NODE)
    )
    return f.NodeRegistered(node_id=node(number), incarnation=1, address="10.0.0.1", gpus=gpus)


def placed(number: int) -> f.JobPlaced:
    where = node(number // GPUS_PER_NODE)
    hold = GpuHold(device(number // GPUS_PER_NODE, number % GPUS_PER_NODE))
    return f.JobPlaced(
        job_id=job(number), attempt=1, members=(Member(where, 1, 0, (hold,)),), port=29_500
    )


def started(number: int) -> f.JobStarted:
    return f.JobStarted(job_id=job(number), attempt=1, node_id=node(number // GPUS_PER_NODE))


def lines() -> Iterator[list[str]]:
    for line in sys.stdin:
        yield line.split()


async def obey(large: Large) -> None:
    """Record as many updates in each second as the last line of the input asked for."""
    rate = 0.0
    loop = asyncio.get_running_loop()
    asked: asyncio.Queue[list[str]] = asyncio.Queue(maxsize=16)

    def listen() -> None:
        for words in lines():
            loop.call_soon_threadsafe(asked.put_nowait, words)
        loop.call_soon_threadsafe(asked.put_nowait, ["end"])

    listening = loop.run_in_executor(None, listen)
    due_s = loop.time()
    while True:
        while not asked.empty():
            words = asked.get_nowait()
            if words[0] == "end":
                await listening
                return
            rate, due_s = float(words[1]) if words[0] == "updates" else 0.0, loop.time()
        while rate and due_s <= loop.time():
            await large.update()
            due_s += 1 / rate
        await asyncio.sleep(POLL_S)


async def main(nodes: int, jobs: int) -> None:
    large = Large(nodes, jobs)
    await large.fill()
    key = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder:
        keys = Path(folder) / "keys"
        keys.write_text(f"{hash_key(key)} bench\n")
        settings = Settings(
            api_keys_file=str(keys), vault_key_file=str(vault_key_file(Path(folder))), instance="a"
        )

        async def filled() -> float:
            return 0.0

        gateway = Gateway(
            log=large.log,
            bus=MemoryBus(),
            clock=large.clock,
            settings=settings,
            outputs=MemoryOutputs(),
            store=MemorySnapshots(),
            filled=filled,
        )
        server = server_for(gateway, "127.0.0.1", 0)
        tasks = [asyncio.create_task(gateway.run()), asyncio.create_task(server.serve())]
        while not (server.started and gateway.caught_up):
            await asyncio.sleep(POLL_S)
        port = server.servers[0].sockets[0].getsockname()[1]
        print(json.dumps({"url": f"http://127.0.0.1:{port}", "key": key}), flush=True)
        await obey(large)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
