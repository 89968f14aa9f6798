"""Contract tests of the log: they run on a stream of a real server and on its twin in memory."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
from nats.aio.msg import Msg
from nats.js.api import DiscardPolicy

from libs.common import subjects
from libs.common.errors import Corrupt, Trimmed
from libs.common.transport import feed_nats
from libs.common.transport.feed_nats import Feed
from libs.common.transport.log import AppendRefused, Entry, Log, TrimmableLog
from libs.common.transport.log_jetstream import JetStreamLog
from libs.common.transport.log_memory import MemoryLog
from tests.contract.conftest import Logs

QUOTA = subjects.QUOTA
NODES = tuple(subjects.node(f"n{n}") for n in range(8))
# More than one batch of either twin.
MANY = 1_200
# A log of 12 MB, in few entries.
LARGE, LARGE_BYTES = 40, 300_000


async def filled(log: Log, count: int) -> list[Entry]:
    """`count` entries, those of each node in order."""

    async def fill(subject: str, share: int) -> list[Entry]:
        entries, last = [], 0
        for n in range(share):
            data = b"%s %d" % (subject.encode(), n)
            last = await log.append(subject, data, last)
            entries.append(Entry(last, subject, data))
        return entries

    parts = await asyncio.gather(*(fill(subject, count // len(NODES)) for subject in NODES))
    return sorted((entry for part in parts for entry in part), key=lambda entry: entry.seq)


async def read(log: Log, after: int, count: int) -> list[Entry]:
    """The next `count` entries."""
    found: list[Entry] = []
    async with asyncio.timeout(20), aclosing(log.read(after)) as batches:  # type: ignore[type-var]
        async for batch in batches:
            found += batch
            if len(found) >= count:
                break
    return found


async def test_an_empty_log_has_nothing(logs: Logs) -> None:
    log = await logs()
    assert await log.bounds() == (1, 0)
    assert await log.last(QUOTA) is None
    assert await log.get(1) is None


async def test_reading_an_empty_log_says_that_there_is_nothing_yet(logs: Logs) -> None:
    log = await logs()
    async with asyncio.timeout(10), aclosing(log.read(0)) as batches:  # type: ignore[type-var]
        assert await anext(batches) == []


async def test_appended_entry_can_be_read(logs: Logs) -> None:
    log = await logs()
    first = await log.append(QUOTA, b"a", 0)
    second = await log.append(QUOTA, b"b", first)
    assert (first, second) == (1, 2)
    assert await log.last(QUOTA) == Entry(2, QUOTA, b"b")
    assert await log.get(1) == Entry(1, QUOTA, b"a")
    assert await log.get(3) is None
    assert await log.bounds() == (1, 2)


async def test_the_last_entry_is_the_subject_s_own(logs: Logs) -> None:
    log = await logs()
    await log.append(QUOTA, b"a", 0)
    await log.append(NODES[0], b"b", 0)
    assert await log.last(QUOTA) == Entry(1, QUOTA, b"a")
    assert await log.last(NODES[1]) is None


async def test_a_subject_s_sequence_is_the_stream_s_and_expected_per_subject(logs: Logs) -> None:
    log = await logs()
    assert await log.append(QUOTA, b"a", 0) == 1
    assert await log.append(NODES[0], b"b", 0) == 2
    assert await log.append(QUOTA, b"c", 1) == 3


@pytest.mark.parametrize("expected", [0, 1, 3, 9])
async def test_a_wrong_expectation_is_refused_and_stores_nothing(logs: Logs, expected: int) -> None:
    log = await logs()
    await log.append(QUOTA, b"a", 0)
    await log.append(QUOTA, b"b", 1)
    with pytest.raises(AppendRefused):
        await log.append(QUOTA, b"c", expected)
    assert await log.bounds() == (1, 2)


async def test_the_second_of_two_processes_that_expect_the_same_is_refused(logs: Logs) -> None:
    one, other = await logs(), await logs()
    await one.append(QUOTA, b"one", 0)
    with pytest.raises(AppendRefused):
        await other.append(QUOTA, b"other", 0)
    assert await other.last(QUOTA) == Entry(1, QUOTA, b"one")


async def test_the_same_commit_twice_is_stored_once(logs: Logs) -> None:
    """A server without replicas refuses the repetition, the others answer with its sequence: see
    `Log.append`.
    """
    log = await logs()
    assert await log.append(QUOTA, b"a", 0) == 1
    try:
        assert await log.append(QUOTA, b"a", 0) == 1
    except AppendRefused:
        assert isinstance(log, JetStreamLog)
    assert await log.bounds() == (1, 1)


async def test_equal_bytes_in_a_new_place_are_another_commit(logs: Logs) -> None:
    log = await logs()
    assert [await log.append(QUOTA, b"a", expected) for expected in range(3)] == [1, 2, 3]
    assert await log.append(NODES[0], b"a", 0) == 4


async def test_everything_is_read_in_order_and_once(logs: Logs) -> None:
    log = await logs()
    entries = await filled(log, MANY)
    assert [entry.seq for entry in entries] == list(range(1, MANY + 1))
    assert await read(log, 0, MANY) == entries


@pytest.mark.parametrize("after", [1, MANY // 2, MANY - 1])
async def test_reading_resumes_behind_any_entry(logs: Logs, after: int) -> None:
    log = await logs()
    entries = await filled(log, MANY)
    assert await read(log, after, MANY - after) == entries[after:]


async def test_reader_gets_later_appends_of_another_process(logs: Logs) -> None:
    log, other = await logs(), await logs()
    await log.append(QUOTA, b"a", 0)
    reading = asyncio.create_task(read(log, 1, 2))
    await asyncio.sleep(0.1)
    await other.append(QUOTA, b"b", 1)
    await other.append(QUOTA, b"c", 2)
    assert await reading == [Entry(2, QUOTA, b"b"), Entry(3, QUOTA, b"c")]


async def test_reader_at_the_end_gets_empty_batches(
    logs: Logs,
) -> None:
    log = await logs()
    await log.append(QUOTA, b"a", 0)
    async with asyncio.timeout(10), aclosing(log.read(1)) as batches:  # type: ignore[type-var]
        assert [await anext(batches) for _ in range(2)] == [[], []]


async def test_a_slow_reader_loses_nothing(logs: Logs) -> None:
    log, other = await logs(), await logs()
    found: list[Entry] = []
    async with asyncio.timeout(30), aclosing(log.read(0)) as batches:  # type: ignore[type-var]
        assert await anext(batches) == []
        entries = await filled(other, MANY)
        async for batch in batches:
            found += batch
            await asyncio.sleep(0.05)
            if len(found) == MANY:
                break
    assert found == entries


async def test_the_server_sends_no_more_than_a_slow_reader_takes(
    jetstream: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await jetstream()
    monkeypatch.setattr(feed_nats, "HELD_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(feed_nats, "BATCH_MAX", 4)
    feeds: list[Feed] = []
    took: list[int] = []
    keep = Feed.batches

    def noted(self: Feed) -> AsyncIterator[list[Entry]]:
        feeds.append(self)
        return keep(self)

    monkeypatch.setattr(Feed, "batches", noted)
    last = 0
    for _ in range(LARGE):
        last = await log.append(QUOTA, bytes(LARGE_BYTES), last)
    async with asyncio.timeout(30), aclosing(log.read(0)) as batches:  # type: ignore[type-var]
        async for batch in batches:
            took += [entry.seq for entry in batch]
            if len(took) == LARGE:
                break
            if len(took) <= 8:
                await asyncio.sleep(0.5)
                assert feeds[0].held_bytes < LARGE * LARGE_BYTES // 2
    assert took == list(range(1, LARGE + 1)) and len(feeds) == 1


async def test_the_end_of_the_log_is_read_although_it_was_lost_on_the_way(
    jetstream: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broken connection loses what was sent into it, and nothing new is written after that."""
    log = await jetstream()
    entries = await filled(log, 16)
    keep = Feed._on_message
    lost: list[int] = []

    async def lossy(self: Feed, msg: Msg) -> None:
        data = (msg.headers or {}).get("Status") != "100"
        if data and len(lost) < 4 and self.after >= 12:
            lost.append(self.after)
            return
        await keep(self, msg)

    monkeypatch.setattr(Feed, "_on_message", lossy)
    assert await read(log, 0, 16) == entries
    assert len(lost) == 4


async def test_a_log_that_ends_before_the_reader_s_place_was_lost(logs: Logs) -> None:
    log = await logs()
    await log.append(QUOTA, b"a", 0)
    with pytest.raises(Corrupt, match="the log ends at 1, before 2"):
        await anext(log.read(2))


async def trimmable(logs: Logs) -> TrimmableLog:
    """A log whose connection may purge (on a server without keys)."""
    log = await logs()
    assert isinstance(log, JetStreamLog | MemoryLog)
    return log


async def trimmed(log: TrimmableLog, upto: int) -> list[Entry]:
    """41 entries, purged up to `upto` as the trimmer does: the last of each subject up to there
    stays, quota's only one at the head.
    """
    first = await log.append(QUOTA, b"only", 0)
    entries = [Entry(first, QUOTA, b"only"), *await filled(log, 40)]
    await log.purge({entry.subject: entry.seq for entry in entries[:upto]})
    return entries


async def test_purge_keeps_the_last_entry_of_each_subject(
    logs: Logs,
) -> None:
    log = await trimmable(logs)
    entries = await trimmed(log, 20)
    stay = {entry.subject: entry for entry in entries[:20]}.values()
    assert await log.bounds() == (1, 41)
    held = [await log.get(seq) for seq in range(1, 42)]
    assert [entry for entry in held if entry] == sorted(
        stay, key=lambda entry: entry.seq
    ) + entries[20:]
    assert (await log.extent()).commits == len(stay) + 21
    assert (await log.extent()).last == 41


async def test_reader_of_a_trimmed_log_needs_a_snapshot(logs: Logs) -> None:
    log = await trimmable(logs)
    entries = await trimmed(log, 20)
    for after in (1, 3):
        with pytest.raises(Trimmed, match=f"no longer holds commit {after + 1}: it was trimmed"):
            await read(log, after, 40)
    assert await read(log, 20, 21) == entries[20:]


async def test_a_gap_behind_a_kept_entry_is_not_read_over(logs: Logs) -> None:
    log = await trimmable(logs)
    await trimmed(log, 20)
    found: list[Entry] = []
    with pytest.raises(Trimmed, match="no longer holds commit 2: it was trimmed"):
        async with asyncio.timeout(20), aclosing(log.read(0)) as batches:  # type: ignore[type-var]
            async for batch in batches:
                found += batch
    assert found == [Entry(1, QUOTA, b"only")]


async def test_the_next_held_entry_is_found_over_the_gap_of_a_trim(logs: Logs) -> None:
    log = await logs()
    assert isinstance(log, JetStreamLog | MemoryLog)
    assert await log.next_held(1) is None
    await trimmed(log, 20)
    held = [seq for seq in range(1, 42) if await log.get(seq)]
    found = [await log.next_held(seq) for seq in range(1, 43)]
    assert found == [min((one for one in held if one >= seq), default=None) for seq in range(1, 43)]


async def test_writer_goes_on_after_a_purge_and_a_deposed_one_is_refused(
    logs: Logs,
) -> None:
    log = await trimmable(logs)
    idle = await log.append(QUOTA, b"idle", await log.append(QUOTA, b"before", 0))
    await filled(log, 40)
    await log.purge({QUOTA: idle})
    assert await log.last(QUOTA) == Entry(idle, QUOTA, b"idle")
    for expected in (0, idle - 1):
        with pytest.raises(AppendRefused):
            await log.append(QUOTA, b"deposed", expected)
    assert await log.append(QUOTA, b"next", idle) == 43


async def test_stream_allows_purges_but_no_deletions(
    jetstream: Logs,
) -> None:
    log = await jetstream()
    assert isinstance(log, JetStreamLog)
    config = (await log.js.stream_info(subjects.STREAM)).config
    assert (config.discard, config.deny_delete, bool(config.deny_purge)) == (
        DiscardPolicy.NEW,
        True,
        False,
    )
