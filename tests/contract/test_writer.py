"""Contract tests of the writer over every log.

A writer keeps the order, stores whole groups, allows one writer at a time, and learns the outcome
of each append in the end.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from libs.common import facts as f
from libs.common import fold, subjects
from libs.common.errors import Corrupt, Fenced, NotRecorded, Unavailable
from libs.common.model import JobId
from libs.common.process.clock import SystemClock
from libs.common.state.cluster import Cluster
from libs.common.transport.connection_nats import connect
from libs.common.transport.log import AppendRefused, AppendUnknown, Entry, Log
from libs.common.transport.log_jetstream import JetStreamLog, create_stream
from libs.common.transport.writer import GROUP_FACTS_MAX, Writer, _Wait, was_stored
from tests.contract.conftest import STREAM_BYTES, Logs
from tests.natsserver import NatsServer

SUBJECT = subjects.QUOTA
# Committed one by one while the server is killed.
FACTS = 400


def admitted(n: int) -> f.JobAdmitted:
    return f.JobAdmitted(job_id=JobId(f"j{n}"))


async def attached(log: Log) -> Writer:
    writer = Writer(log, SystemClock(), SUBJECT, lambda: 0)
    await writer.attach()
    return writer


@asynccontextmanager
async def running(log: Log) -> AsyncIterator[Writer]:
    writer = await attached(log)
    task = asyncio.create_task(writer.run())
    yield writer
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def commits(log: Log) -> list[tuple[Entry, f.Commit]]:
    """The whole log, decoded; its places are checked as a service checks them."""
    _, last = await log.bounds()
    entries = [entry for seq in range(1, last + 1) if (entry := await log.get(seq)) is not None]
    cluster = Cluster()
    for entry in entries:
        fold.pass_over(cluster, entry.seq, entry.subject, f.decode(entry.data))
    return [(entry, f.decode(entry.data)) for entry in entries]


async def jobs(log: Log) -> list[str]:
    """The jobs in the order in which the log names them."""
    return [
        fact.job_id
        for _, commit in await commits(log)
        for fact in commit.facts
        if isinstance(fact, f.JobAdmitted)
    ]


class Faulty:
    """A log whose appends end otherwise than the server says, as the network can make it: one plan
    entry per append.
    """

    def __init__(self, log: Log, *plan: str) -> None:
        self.log = log
        self.plan = list(plan)

    async def append(self, subject: str, data: bytes, expected: int) -> int:
        fault = self.plan.pop(0) if self.plan else ""
        if fault == "lost":
            raise AppendUnknown("the commit never arrived")
        if fault == "refused by mistake":
            raise AppendRefused("a sole writer, refused all the same")
        seq = await self.log.append(subject, data, expected)
        if fault == "unanswered":
            raise AppendUnknown("the answer never arrived")
        return await self.log.append(subject, data, expected) if fault == "sent twice" else seq

    async def last(self, subject: str) -> Entry | None:
        return await self.log.last(subject)

    async def get(self, seq: int) -> Entry | None:
        return await self.log.get(seq)

    async def bounds(self) -> tuple[int, int]:
        return await self.log.bounds()

    def read(self, after: int) -> AsyncIterator[list[Entry]]:
        return self.log.read(after)


async def test_a_writer_stops_when_the_log_gives_it_the_place_of_a_commit_that_was_read(
    logs: Logs,
) -> None:
    """The log has lost commits: what this process knows of them must not go on in new ones."""
    writer = Writer(await logs(), SystemClock(), SUBJECT, lambda: 1)
    await writer.attach()
    with pytest.raises(Corrupt, match="the log ends at 1, before 1: it was lost"):
        await writer.commit([admitted(1)])


async def test_withdrawn_facts_are_not_stored_and_the_others_are(logs: Logs) -> None:
    log = await logs()
    writer = await attached(log)
    kept, withdrawn, last = (writer.put([admitted(n)]) for n in range(3))
    assert writer.withdraw(withdrawn) and withdrawn.cancelled()
    assert not writer.withdraw(withdrawn)
    task = asyncio.create_task(writer.run())
    await asyncio.gather(kept, last)
    assert not writer.withdraw(last)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert await jobs(log) == ["j0", "j2"]


async def test_writer_that_ends_tells_which_facts_were_never_sent(logs: Logs) -> None:
    log = await logs()
    writer, sent = await attached(log), asyncio.Event()
    append = log.append

    async def unanswered(subject: str, data: bytes, expected: int) -> int:
        await append(subject, data, expected)
        sent.set()
        await asyncio.Event().wait()
        return 0

    log.append = unanswered  # type: ignore[method-assign]
    task = asyncio.create_task(writer.run())
    first = writer.put([admitted(0)])
    await sent.wait()
    waiting = writer.put([admitted(1)])
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert isinstance(waiting.exception(), NotRecorded)
    assert type(first.exception()) is Unavailable
    assert await jobs(log) == ["j0"]


async def test_facts_keep_their_order_and_share_commits(logs: Logs) -> None:
    log = await logs()
    async with running(log) as writer:
        seqs = await asyncio.gather(*(writer.put([admitted(n)]) for n in range(600)))
    assert await jobs(log) == [f"j{n}" for n in range(600)]
    assert (
        seqs == sorted(seqs) and len(await commits(log)) == seqs[-1] <= 2 * 600 // GROUP_FACTS_MAX
    )


async def test_waiting_futures_fail_when_the_writer_ends(logs: Logs) -> None:
    log = await logs()
    first = await attached(log)
    second = await attached(await logs())
    await second.commit([admitted(1)])
    running_first = asyncio.create_task(first.run())
    waiting = [first.put([admitted(n)]) for n in range(GROUP_FACTS_MAX + 2)]
    with pytest.raises(Fenced):
        await running_first
    for future in waiting:
        with pytest.raises(Unavailable):
            async with asyncio.timeout(1):
                await future
    assert not was_stored(waiting[-1])


@pytest.mark.parametrize("gives_up", [True, False], ids=["gives up", "goes on"])
async def test_writer_gives_up_after_its_budget_or_retries_until_the_log_stores_the_commit(
    logs: Logs, gives_up: bool, caplog: pytest.LogCaptureFixture
) -> None:
    log = Faulty(await logs(), *["lost"] * 4)
    writer = Writer(log, SystemClock(), SUBJECT, lambda: 0, budget_s=0.1, gives_up=gives_up)
    await writer.attach()
    if gives_up:
        with pytest.raises(Unavailable, match="check that its servers run"):
            await writer.commit([admitted(1)])
        return
    assert await writer.commit([admitted(1)]) == await writer.commit([admitted(2)]) - 1
    assert caplog.text.count("check that its servers run") == 1
    assert caplog.text.count("stores commits on facts.quota again") == 1
    assert await jobs(log.log) == ["j1", "j2"]


async def test_writer_that_goes_on_gives_up_while_the_log_stores_only_commits_of_others(
    logs: Logs,
) -> None:
    """It may read but not publish, for example."""
    others = Writer(await logs(), SystemClock(), subjects.SCHEDULER, lambda: 0)
    await others.attach()
    seen = 0

    async def commit() -> None:
        nonlocal seen
        while True:
            seen = await others.commit([admitted(2)])
            await asyncio.sleep(0.01)

    log = Faulty(await logs(), *["lost"] * 1_000)
    writer = Writer(log, SystemClock(), SUBJECT, lambda: seen, budget_s=0.3, gives_up=False)
    await writer.attach()
    committing = asyncio.create_task(commit())
    async with asyncio.timeout(10):
        with pytest.raises(Unavailable, match="although it stores those of others"):
            await writer.commit([admitted(1)])
    committing.cancel()


def test_commits_of_others_count_only_while_they_follow_each_other() -> None:
    """So a log that stood still has the whole budget to store the commit under way."""
    wait = _Wait(0, seen=5)
    assert [wait.others_ns(at, seen, 10) for at, seen in ((4, 6), (9, 6), (12, 7))] == [4, 0, 12]
    assert [wait.others_ns(at, 7, 10) for at in (20, 30, 100)] == [0, 0, 0]
    assert [wait.others_ns(at, at, 10) for at in (103, 108, 115)] == [3, 8, 15]


async def test_a_group_is_never_divided(logs: Logs) -> None:
    log = await logs()
    async with running(log) as writer:
        groups = [[admitted(100 * g + n) for n in range(7)] for g in range(100)]
        seqs = await asyncio.gather(*(writer.put(group) for group in groups))
    found = {entry.seq: commit.facts for entry, commit in await commits(log)}
    for seq, group in zip(seqs, groups, strict=True):
        at = found[seq].index(group[0])
        assert list(found[seq][at : at + 7]) == group


async def test_a_writer_that_comes_later_goes_on_where_the_subject_stands(logs: Logs) -> None:
    log = await logs()
    await (await attached(log)).commit([admitted(1)])
    later = await attached(await logs())
    assert (later.attached_seq, later.number) == (1, 1)
    assert await later.commit([admitted(2)]) == 2
    assert [commit.number for _, commit in await commits(log)] == [1, 2]


async def test_a_writer_is_fenced_when_another_wrote(logs: Logs) -> None:
    log = await logs()
    one, other = await attached(log), await attached(await logs())
    await other.commit([admitted(1)])
    with pytest.raises(Fenced):
        await one.commit([admitted(2)])
    assert await jobs(log) == ["j1"]


async def test_two_writers_at_the_same_time_leave_one_fenced(logs: Logs) -> None:
    log = await logs()
    writers = [await attached(log), await attached(await logs())]
    ends = await asyncio.gather(
        *(writer.commit([admitted(n)]) for n, writer in enumerate(writers)), return_exceptions=True
    )
    assert sorted(type(end).__name__ for end in ends) == ["Fenced", "int"]
    assert len(await jobs(log)) == 1


async def test_an_entry_that_another_wrote_fences_the_reader_of_it(logs: Logs) -> None:
    log = await logs()
    one, other = await attached(log), await attached(await logs())
    seq = await other.commit([admitted(1)])
    entry = await log.get(seq)
    assert entry is not None and other.owns(entry)
    with pytest.raises(Fenced):
        one.owns(entry)


async def test_entries_before_the_attachment_are_not_own_ones(logs: Logs) -> None:
    log = await logs()
    seq = await (await attached(log)).commit([admitted(1)])
    entry = await log.get(seq)
    assert entry is not None and not (await attached(log)).owns(entry)


@pytest.mark.parametrize("fault", ["lost", "unanswered", "refused by mistake", "sent twice"])
async def test_an_outcome_that_is_not_known_becomes_known(logs: Logs, fault: str) -> None:
    """`sent twice` is what a server without replicas refuses although it stored the first: the
    writer concludes "mine".
    """
    log = await logs()
    async with running(Faulty(log, "", fault, fault)) as writer:
        seqs = [await writer.put([admitted(n)]) for n in range(4)]
    assert seqs == [1, 2, 3, 4]
    assert await jobs(log) == ["j0", "j1", "j2", "j3"]


async def test_single_server_refuses_a_repeated_append(jetstream: Logs) -> None:
    """The case that `test_an_outcome_that_is_not_known_becomes_known` is about is real."""
    log = await jetstream()
    await log.append(SUBJECT, b"a", 0)
    with pytest.raises(AppendRefused):
        await log.append(SUBJECT, b"a", 0)


@pytest.mark.parametrize("fault", ["lost", "unanswered"])
async def test_an_unknown_outcome_is_fenced_when_another_wrote_meanwhile(
    logs: Logs, fault: str
) -> None:
    log = await logs()
    faulty = Faulty(log, fault)
    one, other = await attached(faulty), await attached(log)
    if fault == "lost":
        await other.commit([admitted(1)])
        with pytest.raises(Fenced):
            await one.commit([admitted(2)])
    else:
        assert await one.commit([admitted(2)]) == 1
        with pytest.raises(Fenced):
            await other.commit([admitted(1)])
    assert len(await jobs(log)) == 1


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[NatsServer]:
    """A server of this test alone."""
    server = NatsServer(tmp_path)
    server.start()
    yield server
    server.kill()


async def test_killed_server_loses_no_acknowledged_commit(
    mortal: NatsServer,
) -> None:
    client, other = await connect([mortal.url], "writer"), await connect([mortal.url], "reader")
    await create_stream(client, 1, STREAM_BYTES)
    seen: list[str] = []
    acked: list[str] = []
    reading = asyncio.create_task(follow(JetStreamLog(other), seen))
    async with asyncio.timeout(60), running(JetStreamLog(client)) as writer:
        putting = asyncio.create_task(put_many(writer, acked, FACTS))
        for acknowledged in (50, 200):
            while len(acked) < acknowledged:
                await asyncio.sleep(0.001)
            mortal.kill()
            assert len(acked) < FACTS
            await asyncio.to_thread(mortal.start)
        await putting
        assert acked == [f"j{n}" for n in range(FACTS)] == await jobs(JetStreamLog(client))
        while len(seen) < FACTS:
            await asyncio.sleep(0.05)
    assert seen == acked
    reading.cancel()
    await client.close()
    await other.close()


async def put_many(writer: Writer, acked: list[str], count: int) -> None:
    for n in range(count):
        await writer.put([admitted(n)])
        acked.append(f"j{n}")


async def follow(log: Log, seen: list[str]) -> None:
    """As a service reads: any gap raises."""
    cluster = Cluster()
    async for batch in log.read(0):
        for entry in batch:
            commit = f.decode(entry.data)
            fold.pass_over(cluster, entry.seq, entry.subject, commit)
            seen += [fact.job_id for fact in commit.facts if isinstance(fact, f.JobAdmitted)]


async def test_commit_carries_the_lowest_sequence_of_its_groups(logs: Logs) -> None:
    log = await logs()
    before = await attached(log)
    for n in range(12):
        await before.commit([admitted(n)])
    applied = 7
    writer = Writer(log, SystemClock(), SUBJECT, lambda: applied)
    await writer.attach()
    waiting = [writer.put([admitted(1)])]
    applied = 9
    waiting.append(writer.put([admitted(2)]))
    applied = 11
    task = asyncio.create_task(writer.run())
    await asyncio.gather(*waiting)
    applied = 12
    await writer.put([admitted(3)])
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert [(commit.seen, len(commit.facts)) for _, commit in (await commits(log))[-2:]] == [
        (7, 2),
        (12, 1),
    ]
