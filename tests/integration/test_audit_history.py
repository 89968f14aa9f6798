"""An archive follows only the log whose commits it holds."""

import asyncio
from pathlib import Path

import pytest

from libs.common import subjects
from libs.common.errors import Corrupt, Unavailable
from libs.common.process.pulse import Pulse
from libs.common.transport.log import Entry
from libs.common.transport.log_memory import MemoryLog, MemoryStream
from libs.common.transport.snapshot_store import MemorySnapshots
from services.audit.service import FOLLOWER, Audit
from services.audit.store.store import Store

IDLE_S = 0.05


async def log_of(*commits: bytes) -> MemoryStream:
    stream = MemoryStream()
    log = MemoryLog(stream)
    for before, data in enumerate(commits):
        await log.append(subjects.SCHEDULER, data, before)
    return stream


async def follow(store: Store, stream: MemoryStream) -> None:
    """Run the audit until it has archived the whole log."""
    audit, stop = Audit(MemoryLog(stream, IDLE_S), store, MemorySnapshots()), asyncio.Event()
    await audit.open()
    running = asyncio.create_task(audit.run(stop))
    async with asyncio.timeout(20):
        while audit.archived < len(stream.entries) and not running.done():
            await asyncio.sleep(0.01)
    stop.set()
    await running


@pytest.fixture
def archive(tmp_path: Path) -> Store:
    return Store(f"sqlite:///{tmp_path}/audit.db")


def seqs(store: Store) -> list[int]:
    return [record.seq for record in store.commits()]


async def test_an_archive_continues_its_own_log(archive: Store) -> None:
    await follow(archive, await log_of(b"1", b"2"))
    await follow(archive, await log_of(b"1", b"2", b"3"))
    assert seqs(archive) == [1, 2, 3]


async def test_an_archive_of_another_history_is_not_continued(archive: Store) -> None:
    await follow(archive, await log_of(b"1", b"2"))
    with pytest.raises(Corrupt, match=r"commit 2 of the log is another one.*`muster audit verify`"):
        await follow(archive, await log_of(b"1", b"other", b"3"))
    assert seqs(archive) == [1, 2]


async def test_work_beside_the_archive_does_not_begin_with_another_history(archive: Store) -> None:
    await follow(archive, await log_of(b"1", b"2"))
    begun: list[int] = []

    async def beside() -> None:
        begun.append(1)

    audit = Audit(MemoryLog(await log_of(b"1", b"other"), IDLE_S), archive, MemorySnapshots())
    await audit.open()
    with pytest.raises(Corrupt):
        await audit.run(asyncio.Event(), [beside])
    assert begun == []


async def test_an_archive_whose_last_commit_was_trimmed_continues(archive: Store) -> None:
    await follow(archive, await log_of(b"1", b"2"))
    longer = await log_of(b"1", b"2", b"3")
    longer.purge({subjects.SCHEDULER: 3})
    await follow(archive, longer)
    assert seqs(archive) == [1, 2, 3]


async def test_a_stop_ends_an_audit_that_still_waits_for_the_log(archive: Store) -> None:
    await follow(archive, await log_of(b"1"))

    class Silent(MemoryLog):
        async def bounds(self) -> tuple[int, int]:
            await asyncio.Event().wait()
            raise AssertionError

    audit, stop = Audit(Silent(await log_of(b"1")), archive, MemorySnapshots()), asyncio.Event()
    await audit.open()
    running = asyncio.create_task(audit.run(stop))
    await asyncio.sleep(0)
    stop.set()
    async with asyncio.timeout(20):
        await running


async def test_a_log_that_does_not_answer_delays_the_work_but_not_the_pulse(
    archive: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.audit.service.RETRY_S", 0.01)
    monkeypatch.setattr("libs.common.process.pulse.EVERY_S", 0.0)
    await follow(archive, await log_of(b"1"))
    begun: list[str] = []
    asked = 0

    class Electing(MemoryLog):
        async def get(self, seq: int) -> Entry | None:
            nonlocal asked
            asked += 1
            raise Unavailable("no leader")

    async def live() -> None:
        begun.append("work")
        await asyncio.Event().wait()

    pulse = Pulse(str(tmp_path / "alive"), FOLLOWER)
    log, stop = Electing(await log_of(b"1", b"2"), IDLE_S), asyncio.Event()
    audit = Audit(log, archive, MemorySnapshots(), pulse=pulse)
    await audit.open()
    running = asyncio.create_task(audit.run(stop, [live]))
    async with asyncio.timeout(20):
        while asked < 3:
            await asyncio.sleep(0.01)
        assert begun == [] and pulse.written > 0
        log.get = MemoryLog(log.stream).get  # type: ignore[method-assign]
        while audit.archived < 2:
            await asyncio.sleep(0.01)
    assert begun == ["work"]
    stop.set()
    await running
