"""A node with more to run than one message holds, on a real nats-server: a real scheduler, a real
agent, and no order ever arrives.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio

from libs.common import facts as f
from libs.common import subjects
from libs.common.leadership.leading import give_signs
from libs.common.messages import PAGE_BYTES_MAX
from libs.common.model import JobId, JobSpec, NodeId
from libs.common.process.clock import SystemClock
from libs.common.settings.settings import Settings
from libs.common.transport.bus import CONCURRENT_MAX, MESSAGE_BYTES_MAX, Handler
from libs.common.transport.bus_nats import NatsBus
from libs.common.transport.connection_nats import connect
from libs.common.transport.kv import MemoryOutputs
from libs.common.transport.kv_nats import KvLeadership, create_buckets
from libs.common.transport.log_jetstream import JetStreamLog, create_stream
from libs.common.transport.objects_nats import NatsObjects
from libs.common.transport.writer import Writer
from services.node_agent.core import observations as o
from services.node_agent.directories.job_directories import JobDirectories
from services.node_agent.directories.protocol import Machine
from services.node_agent.drivers.simulated import SimulatedDriver
from services.node_agent.incarnation import IncarnationFile
from services.node_agent.jobs.environment import passed_on
from services.node_agent.jobs.probe import probe
from services.node_agent.service import Agent
from services.scheduler.service import Scheduler
from tests.integration.test_agent_process import nats_server

JOBS = 300
ENVIRONMENT_BYTES = 15 << 10
WAIT_S = 90.0
SETTINGS = Settings(heartbeat_ms=200, lease_ms=60_000)


class Deaf(NatsBus):
    """The scheduler's way out, on which every order is lost; the desired state is not answered
    until `open`.
    """

    open = False

    async def publish(self, subject: str, data: bytes) -> None:
        if not subject.startswith(subjects.ORDERS):
            await super().publish(subject, data)

    async def subscribe(
        self,
        subject: str,
        handler: Handler,
        concurrent: bool = False,
        queue: str = "",
        places: int = CONCURRENT_MAX,
    ) -> None:
        async def later(subject: str, data: bytes) -> bytes | None:
            return await handler(subject, data) if self.open else None

        await super().subscribe(
            subject=subject,
            handler=later if subject.startswith(subjects.DESIRED) else handler,
            concurrent=concurrent,
            queue=queue,
            places=places,
        )


class Told(Agent):
    """Notes how much each full desired state held."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.had: list[int] = []

    def tell(self, seen: o.Observation) -> None:
        if isinstance(seen, o.DesiredReceived):
            self.had.append(len(seen.desired.starts))
        super().tell(seen)


class World:
    def __init__(self, url: str, tmp_path: Path) -> None:
        self.url = url
        self.tmp_path = tmp_path
        self.facts: list[f.AnyFact | f.Unknown] = []

    async def begin(self) -> None:
        client = await connect([self.url], "test")
        await create_stream(client, 1, 256 << 20)
        await create_buckets(client, Settings())
        self.log, self.bus = JetStreamLog(client), Deaf(client)
        self.stop = asyncio.Event()
        scheduler = Scheduler(
            log=self.log,
            bus=self.bus,
            clock=SystemClock(),
            settings=SETTINGS,
            signs=lambda leading: give_signs(leading, self.bus, KvLeadership(client)),
            store=NatsObjects(client),
        )
        self.agent = self._agent()
        self.lives = [
            asyncio.create_task(one)
            for one in (self.follow(), scheduler.run(self.stop), self.agent.run(self.stop))
        ]

    def _agent(self) -> Told:
        machine = Machine(
            node_id="n", address="127.0.0.1", heartbeat_ms=200, environment=passed_on(os.environ)
        )
        jobs, memory = JobDirectories(self.tmp_path), IncarnationFile(self.tmp_path)
        return Told(
            machine,
            self.log,
            self.bus,
            SystemClock(),
            jobs,
            SimulatedDriver(NodeId("n"), 0),
            MemoryOutputs(),
            memory,
            probe,
        )

    async def follow(self) -> None:
        async for batch in self.log.read(0):
            for entry in batch:
                self.facts += f.decode(entry.data).facts

    def count(self, kind: type[f.Fact]) -> int:
        return sum(isinstance(fact, kind) for fact in self.facts)

    async def until(self, kind: type[f.Fact], count: int = 1) -> None:
        async with asyncio.timeout(WAIT_S):
            while self.count(kind) < count:
                await asyncio.sleep(0.02)

    async def submit(self, spec: JobSpec) -> None:
        """As gateway and quota would."""
        for subject, facts in (
            (
                subjects.gateway("t"),
                [f.JobSubmitted(job_id=JobId(f"j{n}"), spec=spec) for n in range(JOBS)],
            ),
            (subjects.QUOTA, [f.JobAdmitted(job_id=JobId(f"j{n}")) for n in range(JOBS)]),
        ):
            writer = Writer(self.log, SystemClock(), subject, lambda: 0)
            await writer.attach()
            for at in range(0, JOBS, 20):
                await writer.commit(facts[at : at + 20])

    async def end(self) -> None:
        for life in self.lives:
            life.cancel()
        for life in self.lives:
            with contextlib.suppress(asyncio.CancelledError):
                await life
        await self.bus.client.close()


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    with nats_server(tmp_path / "nats") as port:
        world = World(f"nats://127.0.0.1:{port}", tmp_path / "agent")
        await world.begin()
        try:
            yield world
        finally:
            await world.end()


async def test_a_node_whose_orders_were_all_lost_gets_more_than_one_message_holds(
    world: World,
) -> None:
    await world.until(f.NodeRegistered)
    await world.submit(
        JobSpec(command=("/bin/true",), env={"LARGE": "x" * ENVIRONMENT_BYTES}, gpus=0, start_s=600)
    )
    await world.until(f.JobPlaced, JOBS)
    assert JOBS * ENVIRONMENT_BYTES > 4 * MESSAGE_BYTES_MAX > 4 * PAGE_BYTES_MAX
    assert world.count(f.JobStarted) == 0
    world.bus.open = True
    await world.until(f.JobClosed, JOBS)
    assert world.agent.had[0] == JOBS
    assert {fact.outcome for fact in world.facts if isinstance(fact, f.JobClosed)} == {"completed"}
