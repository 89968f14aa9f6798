"""One real agent with real supervisors and processes, whose scheduler is the test.

For test_agent.py.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from libs.common import facts as f
from libs.common.errors import MusterError
from libs.common.messages import (
    ControlOrder,
    Desired,
    DesiredAsk,
    Heartbeat,
    Lease,
    Order,
    Orders,
    OutputAsk,
    OutputChunk,
    Peer,
    StartOrder,
    StdinPut,
    StdinTaken,
    StopOrder,
    digest,
)
from libs.common.model import AttemptRef, GpuHold, GpuId, JobId, JobSpec, NodeId
from libs.common.process.clock import SystemClock
from libs.common.subjects import ask_node, desired, heartbeat, orders
from libs.common.transport.bus_memory import MemoryBus
from libs.common.transport.kv import MemoryOutputs
from libs.common.transport.log_memory import MemoryLog, MemoryStream
from services.node_agent.channels.channels import Channels
from services.node_agent.directories.job_directories import JobDirectories
from services.node_agent.directories.protocol import Machine
from services.node_agent.drivers import Driver, sysfs
from services.node_agent.drivers.simulated import SimulatedDriver
from services.node_agent.incarnation import IncarnationFile
from services.node_agent.jobs.environment import passed_on
from services.node_agent.jobs.means import Means
from services.node_agent.jobs.probe import probe
from services.node_agent.memory.pools import Pools
from services.node_agent.runtimes.containers import Containers
from services.node_agent.service import Agent
from services.node_agent.sharing.daemons import Program
from services.node_agent.sharing.shares import Shares
from services.node_agent.supervision.supervisor_client import NO_GROUPS

NODE = NodeId("n")
WAIT_S = 15.0
HEARTBEAT_MS = 100
EPOCH = 1
HOST_BYTES = 64 << 30
EXECS_PER_JOB = 4
OWN_USER = {"*": "self"}
Kind = TypeVar("Kind", bound=f.Fact)


class Scheduler:
    """Answers heartbeats as the test says.

    `starts` and `stops` are what it wants of the node, `seq` its sequence.
    """

    def __init__(self, bus: MemoryBus) -> None:
        self.bus = bus
        self.seq = 100
        self.verdict = "ok"
        self.lease_ms = 30_000
        self.deaf = False
        self.starts: dict[AttemptRef, StartOrder] = {}
        self.stops: dict[AttemptRef, StopOrder] = {}
        self.controls: dict[tuple[GpuId, str], ControlOrder] = {}
        self.incarnation = 0
        self.asked = 0

    async def listen(self) -> None:
        await self.bus.subscribe(heartbeat("*"), self._on_heartbeat)
        await self.bus.subscribe(desired("*"), self._on_desired)

    async def _on_heartbeat(self, subject: str, data: bytes) -> bytes | None:
        if self.deaf:
            return None
        beat = msgspec.msgpack.decode(data, type=Heartbeat)
        verdict = (
            self.verdict if beat.incarnation == self.incarnation or self.incarnation == 0 else "ok"
        )
        lease_ms = self.lease_ms if verdict == "ok" else 0
        stops = ((ref, stop.signal, stop.grace_ms) for ref, stop in self.stops.items())
        wanted = digest(
            self.starts,
            stops,
            ((uuid, control, order.request) for (uuid, control), order in self.controls.items()),
        )
        return msgspec.msgpack.encode(
            Lease(
                epoch=EPOCH,
                verdict=verdict,
                sent_boot_ns=beat.sent_boot_ns,
                lease_ms=lease_ms,
                heartbeat_ms=HEARTBEAT_MS,
                digest=wanted,
                seq=self.seq,
            )
        )

    async def _on_desired(self, subject: str, data: bytes) -> bytes | None:
        self.asked += 1
        ask = msgspec.msgpack.decode(data, type=DesiredAsk)
        full = Desired(
            epoch=EPOCH,
            incarnation=ask.incarnation,
            seq=self.seq,
            starts=tuple(self.starts.values()),
            stops=tuple(self.stops.values()),
        )
        full = msgspec.structs.replace(full, controls=tuple(self.controls.values()))
        return msgspec.msgpack.encode(full)

    async def send(self, *wanted: Order) -> None:
        await self.bus.publish(orders(NODE), msgspec.msgpack.encode(Orders(EPOCH, wanted)))


class World:
    """The log and the state directory outlive the agent: `restart` puts a new one over them.

    `real`: devices in place of `driver`'s.
    """

    def __init__(
        self,
        state_dir: Path,
        home: Mapping[str, str] = NO_GROUPS,
        users: dict[str, str] = OWN_USER,
        real: Driver | None = None,
        program: Program | None = None,
        engine: str = "/nowhere",
    ) -> None:
        self.home, self.users = home, users
        self.real = real
        self.state_dir = state_dir
        self.stream = MemoryStream()
        self.bus = MemoryBus()
        self.scheduler = Scheduler(self.bus)
        self.outputs = MemoryOutputs()
        self.driver: Any = SimulatedDriver(NODE, 2)
        self.program, self.sys_root = program, sysfs.SYS
        self.engine = engine

    def make(self, state_dir: Path | None = None) -> Agent:
        machine = Machine(
            node_id=NODE,
            address="10.0.0.1",
            heartbeat_ms=HEARTBEAT_MS,
            environment=passed_on(os.environ),
            users=self.users,
        )
        directory = state_dir or self.state_dir
        jobs, memory = JobDirectories(directory, home=self.home), IncarnationFile(directory)
        channels = Channels(NODE, self.bus, jobs, EXECS_PER_JOB)
        shares = Shares(directory, self.program, self.home, self.sys_root)
        containers = Containers(jobs.jobs_dir, self.engine)
        means = Means(shares, containers, Pools(directory.resolve(), HOST_BYTES))
        log, clock, driver = MemoryLog(self.stream), SystemClock(), self.real or self.driver
        return Agent(
            machine=machine,
            log=log,
            bus=self.bus,
            clock=clock,
            jobs=jobs,
            driver=driver,
            outputs=self.outputs,
            memory=memory,
            probe=probe,
            channels=channels,
            means=means,
        )

    async def begin(self) -> None:
        self.agent = self.make()
        self.stop = asyncio.Event()
        self.life = asyncio.create_task(self.agent.run(self.stop))
        count = len(self.facts(f.NodeRegistered))
        await self.until(lambda: len(self.facts(f.NodeRegistered)) > count)

    async def end(self) -> None:
        """As by SIGTERM."""
        self.stop.set()
        await asyncio.wait_for(self.life, WAIT_S)

    async def drop(self) -> None:
        """As by SIGKILL, as nearly as one process can: nothing is brought to its end."""
        self.life.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.life

    def commits(self) -> list[f.Commit]:
        return [f.decode(entry.data) for entry in self.stream.entries]

    def facts(self, kind: type[Kind]) -> list[Kind]:
        return [
            fact for commit in self.commits() for fact in commit.facts if isinstance(fact, kind)
        ]

    def of(self, job: str) -> list[str]:
        """The kinds of facts about a job, in order."""
        return [
            f.kind_of(fact)
            for commit in self.commits()
            for fact in commit.facts
            if getattr(fact, "job_id", "") == job
        ]

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not holds():
                if self.life.done():
                    self.life.result()
                await asyncio.sleep(0.005)

    async def said(self, kind: type[Kind], job: str, count: int = 1) -> Kind:
        def found() -> list[Kind]:
            return [fact for fact in self.facts(kind) if getattr(fact, "job_id", "") == job]

        await self.until(lambda: len(found()) >= count)
        return found()[-1]

    def order(
        self,
        job: str,
        script: str,
        attempt: int = 1,
        incarnation: int = 0,
        stdin: bool = False,
        **wish: int,
    ) -> StartOrder:
        self.scheduler.seq += 1
        spec = JobSpec(
            command=("/bin/sh", "-c", script), workdir=str(self.state_dir), stdin=stdin, **wish
        )  # type: ignore[arg-type]
        holds, peers = (GpuHold(GpuId(f"GPU-{NODE}-0")),), (Peer(NODE, "10.0.0.1", 1),)
        who = incarnation or self.agent.state.incarnation
        return StartOrder(
            job_id=JobId(job),
            attempt=attempt,
            incarnation=who,
            seq=self.scheduler.seq,
            rank=0,
            gpus=holds,
            spec=spec,
            tenant="default",
            user="u",
            peers=peers,
            port=29_511,
        )

    async def start(self, job: str, script: str, stdin: bool = False, **wish: int) -> StartOrder:
        return await self.place(self.order(job, script, stdin=stdin, **wish))

    async def place(self, order: StartOrder) -> StartOrder:
        """Wanted and ordered, as the scheduler does: an order that is not among what it wants is
        stopped at the next heartbeat.
        """
        self.scheduler.starts[AttemptRef(order.job_id, 1)] = order
        await self.scheduler.send(order)
        return order

    def stop_order(self, job: str, signal: int = 15, grace_ms: int = 10_000) -> StopOrder:
        self.scheduler.seq += 1
        order = StopOrder(
            job_id=JobId(job),
            attempt=1,
            seq=self.scheduler.seq,
            reason="cancelled",
            signal=signal,
            grace_ms=grace_ms,
        )
        self.scheduler.stops[AttemptRef(order.job_id, 1)] = order
        return order

    def closed(self, job: str) -> None:
        """The scheduler has seen the release."""
        self.scheduler.seq = max(self.scheduler.seq, len(self.stream.entries)) + 1
        self.scheduler.starts.pop(AttemptRef(JobId(job), 1), None)
        self.scheduler.stops.pop(AttemptRef(JobId(job), 1), None)

    async def output(
        self, job: str, offset: int = 0, wait_ms: int = 0, stream: str = "stdout"
    ) -> OutputChunk:
        ask = OutputAsk(
            job_id=JobId(job),
            attempt=1,
            stream=stream,
            offset=offset,
            max_bytes=1 << 16,
            wait_ms=wait_ms,
        )
        answer = await self.bus.request(
            ask_node(NODE, "output"), msgspec.msgpack.encode(ask), WAIT_S
        )
        return msgspec.msgpack.decode(answer, type=OutputChunk)

    async def type(self, job: str, offset: int, data: bytes, eof: bool = False) -> StdinTaken:
        put = StdinPut(job_id=JobId(job), attempt=1, offset=offset, data=data, eof=eof)
        answer = await self.bus.request(
            ask_node(NODE, "stdin"), msgspec.msgpack.encode(put), WAIT_S
        )
        return msgspec.msgpack.decode(answer, type=StdinTaken)


@contextlib.asynccontextmanager
async def world_at(
    state_dir: Path,
    home: Mapping[str, str] = NO_GROUPS,
    users: dict[str, str] = OWN_USER,
    real: Driver | None = None,
    program: Program | None = None,
    engine: str = "/nowhere",
) -> AsyncIterator[World]:
    """Ends what the test left behind."""
    world = World(
        state_dir=state_dir, home=home, users=users, real=real, program=program, engine=engine
    )
    await world.scheduler.listen()
    await world.begin()
    try:
        yield world
    finally:
        with contextlib.suppress(MusterError, asyncio.CancelledError):
            if not world.life.done():
                await world.agent._kill_all()
                await asyncio.sleep(0.1)
                await world.end()
