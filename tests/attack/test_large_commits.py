"""A commit over the log's bound: a large gang, thousands of preempted jobs, thousands of attempts.

It must not end its writer.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from libs.common import facts as f
from libs.common import subjects
from libs.common.errors import Refused
from libs.common.facts import AnyFact
from libs.common.model import AttemptRef, GpuHold, GpuId, JobId, Member, NodeId
from libs.common.process.clock import SystemClock
from libs.common.transport.connection_nats import connect
from libs.common.transport.log_jetstream import JetStreamLog, create_stream
from libs.common.transport.writer import Writer
from tests.natsserver import NatsServer

STREAM_BYTES = 64 << 20


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    started = NatsServer(tmp_path)
    started.start()
    yield started
    started.kill()


@asynccontextmanager
async def writing(server: NatsServer, subject: str) -> AsyncIterator[Writer]:
    client = await connect([server.url], "test")
    await create_stream(client, 1, STREAM_BYTES)
    writer = Writer(JetStreamLog(client), SystemClock(), subject, lambda: 0)
    await writer.attach()
    task = asyncio.create_task(writer.run())
    yield writer
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    await client.close()


def gang(nodes: int, gpus: int) -> f.JobPlaced:
    """A placement of whole GPUs, each with a UUID as real ones have."""
    uuids = iter(
        uuid.UUID(int=number * 0x9E3779B97F4A7C15F39CC0605CEDC835 % (1 << 128))
        for number in range(1, nodes * gpus + 1)
    )
    members = tuple(
        Member(
            NodeId(f"node-{rank}"),
            1,
            rank,
            tuple(GpuHold(GpuId(f"GPU-{next(uuids)}")) for _ in range(gpus)),
        )
        for rank in range(nodes)
    )
    return f.JobPlaced(job_id=JobId("jgang"), attempt=1, members=members)


def preemptions(count: int) -> list[AnyFact]:
    return [
        f.JobPreempted(
            job_id=JobId(f"jvictim{n}"),
            attempt=1,
            by=JobId("jgang"),
            signal=15,
            grace_ms=30_000,
            lost_share_ms=n,
        )
        for n in range(count)
    ]


async def recorded(server: NatsServer, subject: str, facts: Sequence[AnyFact]) -> f.Commit:
    """Return the facts in the log after a later commit is stored."""
    async with writing(server, subject) as writer:
        seq = await writer.put(facts)
        assert await writer.put([f.JobAdmitted(job_id=JobId("jlater"))]) == seq + 1
        entry = await writer.log.get(seq)
        assert entry is not None and len(entry.data) <= f.COMMIT_BYTES_MAX
        return f.decode(entry.data)


async def test_a_gang_of_ten_thousand_devices_is_recorded_whole(server: NatsServer) -> None:
    placed = gang(1_280, 8)
    assert (await recorded(server, subjects.SCHEDULER, [placed])).facts == (placed,)


async def test_thousands_of_preempted_jobs_are_recorded_with_the_reservation(
    server: NatsServer,
) -> None:
    group = [
        f.DevicesReserved(job_id=JobId("jgang"), attempt=1, members=gang(1_024, 8).members),
        *preemptions(4_096),
    ]
    assert (await recorded(server, subjects.SCHEDULER, group)).facts == tuple(group)


async def test_a_node_with_thousands_of_attempts_registers(server: NatsServer) -> None:
    attempts = tuple(AttemptRef(JobId(f"jattempt{n:07}"), 1) for n in range(20_000))
    fact = f.NodeRegistered(
        node_id=NodeId("node-1"), incarnation=1, address="a", gpus=(), attempts=attempts
    )
    assert (await recorded(server, subjects.node(NodeId("node-1")), [fact])).facts == (fact,)


async def test_facts_that_no_commit_can_hold_are_refused_alone(server: NatsServer) -> None:
    endless = f.JobRejected(
        job_id=JobId("jendless"), reason="x" * (f.packing.UNPACKED_BYTES_MAX + 1)
    )
    async with writing(server, subjects.QUOTA) as writer:
        refused = writer.put([endless])
        stored = writer.put([f.JobAdmitted(job_id=JobId("jlater"))])
        with pytest.raises(Refused, match="send less at once"):
            await refused
        assert await stored > 0
