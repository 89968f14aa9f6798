"""A gateway over real HTTP on a free port, with the log and the bus in memory; the test plays
quota, the scheduler and the agents.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from libs.common import facts as f
from libs.common import subjects
from libs.common.facts import AnyFact, Commit
from libs.common.messages import OutputAsk, OutputChunk, StdinPut, StdinTaken
from libs.common.model import Gpu, GpuHold, GpuId, JobId, Member, NodeId
from libs.common.process.clock import SystemClock
from libs.common.settings.settings import Settings
from libs.common.transport.bus import Bus
from libs.common.transport.bus_memory import MemoryBus
from libs.common.transport.kv import MemoryOutputs
from libs.common.transport.log import Log
from libs.common.transport.log_memory import MemoryLog, MemoryStream
from libs.common.transport.once import MemoryOnce
from libs.common.transport.revisions import MemoryRevisions
from libs.common.transport.snapshot_store import MemorySnapshots
from services.api_gateway.access.auth import hash_key
from services.api_gateway.gateway import Gateway
from services.api_gateway.service import server_for

KEY = "test-key"
# What json.loads gives.
Json = Any
GIB = 1 << 30


class Writers:
    """Commits of everyone but the gateway."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.clock = SystemClock()
        self.epoch = 0

    async def write(self, subject: str, *facts: AnyFact, epoch: int = 0) -> int:
        last = await self.log.last(subject)
        number = f.decode(last.data).number + 1 if last else 1
        seen = last.seq if last else 0
        commit = Commit(
            version=f.VERSION,
            min_reader=f.VERSION,
            writer=subject,
            number=number,
            epoch=epoch,
            at_ns=self.clock.wall_ns(),
            seen=seen,
            facts=facts,
        )
        return await self.log.append(subject, f.encode(commit), last.seq if last else 0)

    async def begin_term(self) -> None:
        self.epoch = await self.write(subjects.SCHEDULER, f.TermBegan(instance="s1"))

    async def schedule(self, *facts: AnyFact) -> int:
        return await self.write(subjects.SCHEDULER, *facts, epoch=self.epoch)

    async def register(self, node_id: str, gpus: int = 2, link_address: str = "") -> int:
        devices = tuple(
            Gpu(
                uuid=GpuId(f"{node_id}-g{i}"),
                index=i,
                vendor="nvidia",
                model="H100",
                memory_bytes=80 * GIB,
            )
            for i in range(gpus)
        )
        fact = f.NodeRegistered(
            node_id=NodeId(node_id),
            incarnation=1,
            address="10.0.0.1",
            gpus=devices,
            takes_controls=True,
            link_address=link_address,
        )
        return await self.write(subjects.node(node_id), fact, epoch=1)

    async def queue(self, job_id: str) -> int:
        await self.admit(job_id)
        return await self.queue_admitted(job_id)

    async def admit(self, job_id: str) -> int:
        return await self.write(subjects.QUOTA, f.JobAdmitted(job_id=JobId(job_id)))

    async def queue_admitted(self, job_id: str) -> int:
        return await self.schedule(f.JobQueued(job_id=JobId(job_id)))

    async def place(self, job_id: str, *node_ids: str, attempt: int = 1) -> int:
        members = tuple(
            Member(NodeId(node), 1, rank, (GpuHold(GpuId(f"{node}-g0")),))
            for rank, node in enumerate(node_ids)
        )
        return await self.schedule(
            f.JobPlaced(job_id=JobId(job_id), attempt=attempt, members=members, port=29500)
        )

    async def start(self, job_id: str, node_id: str, attempt: int = 1) -> int:
        return await self.on(
            node_id, f.JobStarted(job_id=JobId(job_id), attempt=attempt, node_id=NodeId(node_id))
        )

    async def finish(
        self, job_id: str, node_id: str, attempt: int = 1, exit_code: int = 0, written: int = 0
    ) -> int:
        job, node = JobId(job_id), NodeId(node_id)
        over = f.JobFinished(
            job_id=job, attempt=attempt, node_id=node, exit_code=exit_code, stdout_bytes=written
        )
        return await self.on(
            node_id, over, f.JobReleased(job_id=job, attempt=attempt, node_id=node)
        )

    async def close(
        self, job_id: str, outcome: str = "completed", exit_code: int | None = 0, attempt: int = 1
    ) -> int:
        return await self.schedule(
            f.JobClosed(job_id=JobId(job_id), attempt=attempt, outcome=outcome, exit_code=exit_code)
        )

    async def on(self, node_id: str, *facts: AnyFact) -> int:
        return await self.write(subjects.node(node_id), *facts, epoch=1)


class FakeNode:
    """An agent's answers: bytes by (job, attempt, stream), each growing until it is ended; input as
    it was taken.
    """

    def __init__(self) -> None:
        self.written: dict[tuple[str, int, str], bytearray] = {}
        self.ended: set[tuple[str, int, str]] = set()
        self.grown = asyncio.Event()
        self.input = b""
        self.eof = False

    async def listen(self, bus: Bus, node_id: str) -> None:
        await bus.subscribe(subjects.ask_node(node_id, "output"), self._output, concurrent=True)
        await bus.subscribe(subjects.ask_node(node_id, "stdin"), self._stdin, concurrent=True)

    def say(
        self, job_id: str, stream: str, data: bytes, attempt: int = 1, end: bool = False
    ) -> None:
        self.written.setdefault((job_id, attempt, stream), bytearray()).extend(data)
        if end:
            self.ended.add((job_id, attempt, stream))
        self.grown.set()
        self.grown = asyncio.Event()

    async def _output(self, subject: str, data: bytes) -> bytes:
        ask = msgspec.msgpack.decode(data, type=OutputAsk)
        key = (ask.job_id, ask.attempt, ask.stream)
        if key not in self.written:
            return msgspec.msgpack.encode(OutputChunk(ask.offset, b"", True, "no such attempt"))
        if ask.offset >= len(self.written[key]) and key not in self.ended and ask.wait_ms:
            try:
                await asyncio.wait_for(self.grown.wait(), ask.wait_ms / 1000)
            except TimeoutError:
                pass
        piece = bytes(self.written[key][ask.offset : ask.offset + ask.max_bytes])
        end = key in self.ended and ask.offset + len(piece) >= len(self.written[key])
        return msgspec.msgpack.encode(OutputChunk(ask.offset, piece, end))

    async def _stdin(self, subject: str, data: bytes) -> bytes:
        put = msgspec.msgpack.decode(data, type=StdinPut)
        self.input += put.data[len(self.input) - put.offset :]
        self.eof = self.eof or put.eof
        return msgspec.msgpack.encode(StdinTaken(len(self.input), closed=self.eof))


class World:
    """One running gateway and a client with a key."""

    def __init__(
        self,
        gateway: Gateway,
        running: asyncio.Task[None],
        session: aiohttp.ClientSession,
        url: str,
    ) -> None:
        self.gateway = gateway
        self.running = running
        self.session = session
        self.url = url
        assert isinstance(gateway.log, MemoryLog)
        assert isinstance(gateway.bus, MemoryBus)
        assert isinstance(gateway.outputs, MemoryOutputs)
        self.log, self.bus, self.outputs = gateway.log, gateway.bus, gateway.outputs
        self.writers = Writers(self.log)

    async def ask(self, method: str, path: str, status: int = 200, **options: object) -> Json:
        """The JSON answer; asserts its status."""
        async with self.session.request(method, self.url + path, **options) as response:
            text = await response.text()
            assert response.status == status, f"{method} {path}: {response.status} {text}"
            return json.loads(text) if text else None

    async def submit(self, **fields: object) -> dict[str, Any]:
        job: dict[str, Any] = await self.ask(
            "POST", "/v1/jobs", 201, json={"command": ["true"], **fields}
        )
        return job

    async def settle(self) -> None:
        """Everything in the log is folded."""
        await self.gateway.settle((await self.log.bounds())[1])

    async def said(self) -> list[AnyFact | f.Unknown]:
        """All facts of the log but the access records, which come when they come."""
        entries = [await self.log.get(seq) for seq in range(1, (await self.log.bounds())[1] + 1)]
        facts = [
            fact for entry in entries if entry is not None for fact in f.decode(entry.data).facts
        ]
        return [fact for fact in facts if not isinstance(fact, f.AccessRecorded)]

    @asynccontextmanager
    async def as_(self, role: str, user: str, tenant: str = "default") -> AsyncIterator["World"]:
        """The same gateway, asked with a new key of that role."""
        made = await self.ask(
            "POST", "/v1/keys", 201, json={"user": user, "tenant": tenant, "role": role}
        )
        async with aiohttp.ClientSession(
            headers={"authorization": f"Bearer {made['key']}"}
        ) as session:
            yield World(self.gateway, self.running, session, self.url)

    async def run_to(self, state: str, node: str = "n1", **fields: object) -> str:
        """A job in that state: queued, placed, running or completed."""
        job_id: str = (await self.submit(**fields))["id"]
        await self.writers.queue(job_id)
        steps = {"queued": 0, "placed": 1, "running": 2, "completed": 4}[state]
        moves = [self.writers.place, self.writers.start, self.writers.finish]
        for move in moves[:steps]:
            await move(job_id, node)
        if state == "completed":
            await self.writers.close(job_id)
        await self.settle()
        return job_id


@asynccontextmanager
async def gateway_world(
    tmp_path: Path,
    stream: MemoryStream | None = None,
    store: MemorySnapshots | None = None,
    filled: float = 0.0,
    records_access: bool = False,
    instance: str = "a",
    bus: MemoryBus | None = None,
    once: MemoryOnce | None = None,
    revisions: MemoryRevisions | None = None,
    **changed: Any,
) -> AsyncIterator[World]:
    """`changed` are settings."""
    keys = tmp_path / "keys"
    keys.write_text(f"# accepted\n{hash_key(KEY)} tests\n")
    settings = Settings(api_keys_file=str(keys), instance=instance, **changed)

    async def part() -> float:
        return filled

    gateway = Gateway(
        log=MemoryLog(stream, idle_s=0.05),
        bus=bus or MemoryBus(),
        clock=SystemClock(),
        settings=settings,
        outputs=MemoryOutputs(),
        store=store or MemorySnapshots(),
        filled=part,
        once=once,
    )
    if revisions is not None:
        gateway.notifier.use(revisions)
    if not records_access:
        gateway.access.pause_s = 3_600.0  # the log holds what the test says, and nothing in between
    server = server_for(gateway, "127.0.0.1", 0)
    tasks = [asyncio.create_task(gateway.run()), asyncio.create_task(server.serve())]
    while not (server.started and gateway.caught_up):
        assert not any(task.done() for task in tasks), [
            task.exception() for task in tasks if task.done()
        ]
        await asyncio.sleep(0.005)
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    try:
        async with aiohttp.ClientSession(headers={"authorization": f"Bearer {KEY}"}) as session:
            yield World(gateway, tasks[0], session, url)
    finally:
        server.should_exit = server.force_exit = True
        tasks[0].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
