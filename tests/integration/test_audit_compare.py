"""`verify` compares the archive with the log, even if the log was trimmed, lost or shortened."""

from collections.abc import AsyncIterator

import pytest

from libs.common.errors import Trimmed
from libs.common.transport.log import Entry
from libs.common.transport.log_memory import MemoryLog, MemoryStream
from services.audit.chain.verify import held, render, until_now, verify
from services.audit.store.store import Store
from tests.integration.audit_world import entries, tamper, wrongs


class Trimming:
    """A log of 40 commits, trimmed up to `base`; a reader of the base asks here."""

    def __init__(self, *bases: int) -> None:
        self.stream = MemoryStream()
        self.log = MemoryLog(self.stream, idle_s=0.01)
        self.bases = list(bases)
        last = 0
        for entry in entries(1, 40):
            last = self.stream.store(entry.subject, entry.data, last)

    def trim(self, upto: int) -> None:
        """Remove the commits before `upto`, but not the fifth."""
        self.stream.purged = set(range(1, upto)) - {5}

    async def base(self) -> int:
        return self.bases.pop(0) if len(self.bases) > 1 else self.bases[0]

    def held(self) -> AsyncIterator[list[Entry]]:
        return held(self.log, self.base)


async def seqs(stream: AsyncIterator[list[Entry]]) -> list[int]:
    return [entry.seq async for batch in stream for entry in batch]


async def test_a_trimmed_log_is_read_from_its_base_on() -> None:
    trimming = Trimming(20)
    trimming.trim(20)
    assert await seqs(trimming.held()) == list(range(21, 41))


async def test_without_a_usable_base_everything_that_the_log_holds_is_compared(
    store: Store,
) -> None:
    store.append(entries(1, 40))
    trimming = Trimming(0)
    trimming.trim(20)
    report = await verify(store, trimming.held())
    assert (report.findings, report.streamed, report.since) == ((), 22, 20)
    assert "22 compared with the stream from commit 20 on: the chain is whole" in render(report)


async def test_an_entry_before_the_gap_counts_too(store: Store) -> None:
    other = [*entries(1, 4), *entries(5, 5, padding=1), *entries(6, 40)]
    store.append(other)
    trimming = Trimming(0)
    trimming.trim(20)
    assert wrongs(await verify(store, trimming.held())) == [(4, 5, "stream differs")]


async def test_a_log_that_is_trimmed_meanwhile_is_read_from_the_next_base_on() -> None:
    trimming = Trimming(20, 30)
    trimming.trim(30)
    assert await seqs(trimming.held()) == list(range(31, 41))


async def test_a_commit_that_is_missing_behind_the_base_is_not_passed_over() -> None:
    trimming = Trimming(20)
    trimming.trim(20)
    trimming.stream.purged.add(35)
    with pytest.raises(Trimmed, match="no longer holds commit 35"):
        await seqs(trimming.held())


async def test_a_comparison_that_ends_early_keeps_the_findings_of_before(
    store: Store, url: str
) -> None:
    store.append(entries(1, 40))
    tamper(url, "update commits set subject = 'facts.quota' where seq in (3, 25)")
    trimming = Trimming(20)
    trimming.trim(20)
    trimming.stream.purged.add(35)
    report = await verify(store, trimming.held(), log=trimming.log)
    assert {(2, 3, "changed"), (24, 25, "changed")} <= set(wrongs(report))
    assert wrongs(report)[-1] == (24, 25, "stream differs")
    *_, why, verdict = render(report).splitlines()
    assert why.startswith("the comparison with the log ended early: the log no longer holds commit")
    assert "14 compared with the stream from commit 21 on, not to its end: " in verdict


async def test_the_base_is_loaded_after_the_check_of_the_chain(store: Store) -> None:
    store.append(entries(1, 40))
    trimming = Trimming(20)
    stream = trimming.held()
    trimming.bases = [30]
    trimming.trim(30)
    assert (await verify(store, stream, log=trimming.log)).streamed == 10


async def test_an_archive_with_more_than_the_log_is_reported_also_if_the_log_is_empty(
    store: Store,
) -> None:
    store.append(entries(1, 45))
    trimming = Trimming(0)
    report = await verify(store, trimming.held(), log=trimming.log)
    assert (wrongs(report), report.streamed) == ([(40, 41, "inserted")], 40)
    empty = MemoryLog(MemoryStream())
    report = await verify(store, until_now(empty, 0), log=empty)
    assert wrongs(report) == [(0, 1, "inserted")]
    assert "the log ends at 0, and the archive holds 45 more" in render(report)


async def test_a_log_that_ends_before_its_base_is_reported(store: Store) -> None:
    store.append(entries(1, 45))
    trimming = Trimming(42)
    report = await verify(store, trimming.held(), log=trimming.log)
    assert wrongs(report) == [(40, 41, "inserted")]
    assert "the log ends at 40, before 42" in report.ended
