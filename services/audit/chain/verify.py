"""Verifies the archive: recomputes the chain, reads every commit's facts again, and compares the
archive with the stream and with noted hashes.

It reads page by page and changes nothing. A chain proves only that it is complete up to its own
head. Records that were cut off at the end, or a history that was rewritten with all its hashes,
show by the stream, as far as it reaches back, or by hashes that were noted outside the archive
(`heads.py`). `alignment.py` names what was done to a broken chain.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from libs.common import subjects
from libs.common.errors import MusterError, Trimmed, Unavailable
from libs.common.quantities import counted
from libs.common.transport.log import Entry, HeldLog, Log
from services.audit.chain.alignment import findings
from services.audit.chain.chain import GENESIS
from services.audit.chain.segments import Finding, Walk, Wrong, step
from services.audit.store.reading import (
    PORTION_BYTES,
    PORTION_ROWS,
    UNREADABLE,
    FactRow,
    Reading,
    Weight,
    earlier,
    portions,
    read,
)
from services.audit.store.store import Record, Store

FINDINGS_MAX: Final = 1_000
PAGE: Final = 256
# The archive may be behind while commits are written. It has this long to reach the stream's end.
CATCH_UP_S: Final = 10.0
CATCH_UP_POLL_S: Final = 0.05
# Empty batches in a row, of half a second each, after which the log counts as silent.
SILENT_MAX: Final = 20
NOTHING: Final = MappingProxyType[int, str]({})


class Report(msgspec.Struct, frozen=True):
    """The result of a check of the chain.

    `more` counts findings beyond FINDINGS_MAX. `streamed` counts entries that were compared with
    the stream, None if it was not read; from commit `since` on it has no gap. `ended` is why the
    comparison ended before the stream's end.
    """

    commits: int
    head_hash: str
    findings: tuple[Finding, ...] = ()
    more: int = 0
    streamed: int | None = None
    since: int = 0
    ended: str = ""


class Findings(msgspec.Struct):
    """A bounded list of findings."""

    kept: list[Finding] = []
    more: int = 0

    def add(self, index: int, seq: int, wrong: Wrong, detail: str) -> None:
        if len(self.kept) < FINDINGS_MAX:
            self.kept.append(Finding(index, seq, wrong, detail))
        else:
            self.more += 1


class Streamed(msgspec.Struct):
    """How far the archive was compared with the stream; see `Report`."""

    count: int = 0
    since: int = 0
    last: int = 0

    def add(self, batch: Sequence[Entry]) -> None:
        if not self.count or batch[0].seq != self.last + 1:
            self.since = batch[0].seq
        self.last, self.count = batch[-1].seq, self.count + len(batch)


async def verify(
    store: Store,
    stream: AsyncIterator[list[Entry]] | None = None,
    noted: Mapping[int, str] = NOTHING,
    log: Log | None = None,
) -> Report:
    """Verify the whole archive, also against hashes `noted` by sequence, then against `stream` (of
    `held` or `until_now`) and the end of `log`, from which it is.

    Raises the typed errors of the archive. A fault of a record is a finding, and a fault of the
    comparison ends it: neither is an error.
    """
    report = await asyncio.to_thread(check, store, noted)
    if stream is None:
        return report
    found = Findings(list(report.findings), report.more)
    streamed, ended = Streamed(), ""
    try:
        await _compare_end(store, log, found)
        await _compare_stream(store, stream, found, streamed)
    except MusterError as error:
        ended = str(error)
    return Report(
        commits=report.commits,
        head_hash=report.head_hash,
        findings=tuple(found.kept),
        more=found.more,
        streamed=streamed.count,
        since=streamed.since,
        ended=ended,
    )


async def until_now(log: Log, after: int) -> AsyncIterator[list[Entry]]:
    """Yield the log after `after`, up to its end at the time of the first read.

    Raises Unavailable if the log falls silent before, and Corrupt if it ends before `after`.
    """
    _, last = await log.bounds()
    if after == last:
        return
    silent = 0
    async for batch in log.read(after):
        silent = 0 if batch else silent + 1
        if silent > SILENT_MAX:
            raise Unavailable(
                f"the log gave nothing behind {after}, and ends at {last}: is its server up?"
            )
        if batch:
            after = batch[-1].seq
            yield [entry for entry in batch if entry.seq <= last]
        if after >= last:
            return


async def held(log: HeldLog, base: Callable[[], Awaitable[int]]) -> AsyncIterator[list[Entry]]:
    """Yield what the log holds up to its end, from behind its base on.

    The base is the snapshot behind which the log is whole. `base` returns its commit, or 0 if no
    base can be used. It is called at the first read, and again if the log no longer holds a commit,
    because the log may have been trimmed meanwhile. Without a base, gaps of a trim are skipped.
    Raises like `until_now`, and Trimmed if a commit after the base is missing.
    """
    after = await base()
    while True:
        try:
            async for batch in until_now(log, after):
                yield batch
                after = batch[-1].seq if batch else after
            return
        except Trimmed:
            newest = await base()
            following = await log.next_held(after + 1) if not newest else newest + 1
            if following is None or following <= after + 1:
                raise
            after = following - 1


def check(store: Store, noted: Mapping[int, str] = NOTHING) -> Report:
    """Verify the archive by itself and against the hashes `noted` by sequence. Blocking."""
    walk, found, last = Walk(), Findings(), None
    unseen = dict(noted)
    for page in _pages(store):
        for record in page:
            step(walk, record)
            if record.hash != unseen.pop(record.seq, record.hash):
                found.add(
                    record.index,
                    record.seq,
                    "changed",
                    "its hash is not the one that was noted: the chain was rewritten up to here",
                )
        for portion in portions(map(_reread, page), _weight, PORTION_BYTES, PORTION_ROWS):
            seqs = [reread.record.seq for reread in portion]
            _check_facts(portion, store.facts_of(seqs), found)
        last = page[-1]
    for seq in sorted(unseen):
        found.add(
            seq - 1, seq, "missing", "the archive does not hold this record, whose hash was noted"
        )
    for seq in store.orphans(FINDINGS_MAX):
        found.add(seq - 1, seq, "facts differ", "facts rows without a commit")
    return _report(walk, found, last.hash if last else GENESIS)


def _report(walk: Walk, found: Findings, head_hash: str) -> Report:
    chain = findings(walk)
    both = sorted(chain + found.kept, key=lambda finding: finding.index)
    more = found.more + max(len(both) - FINDINGS_MAX, 0)
    return Report(walk.position, head_hash, tuple(both[:FINDINGS_MAX]), more)


def _pages(store: Store) -> Iterator[list[Record]]:
    page: list[Record] = []
    for record in store.commits():
        page.append(record)
        if len(page) == PAGE:
            yield page
            page = []
    if page:
        yield page


class Reread(NamedTuple):
    """A record, with the readings that its time and its fact rows may have.

    Before nodes had a bound, a large commit of a node had rows. Such an archive is valid too.
    """

    record: Record
    readings: tuple[Reading, ...]


def _reread(record: Record) -> Reread:
    reading = read(record.seq, record.subject, record.data)
    is_node = subjects.writer_kind(record.subject) == subjects.NODE_KIND
    if reading != UNREADABLE or not is_node:
        return Reread(record, (reading,))
    return Reread(record, (reading, earlier(record.seq, record.data)))


def _weight(reread: Reread) -> Weight:
    rows = max(len(reading.facts) for reading in reread.readings)
    return Weight(len(reread.record.data), rows)


def _check_facts(portion: Sequence[Reread], rows: Sequence[FactRow], found: Findings) -> None:
    stored: defaultdict[int, list[FactRow]] = defaultdict(list)
    for row in rows:
        stored[row.seq].append(row)
    for record, readings in portion:
        as_stored = Reading(record.at_ns, tuple(stored[record.seq]))
        if as_stored in readings:
            continue
        reading = next((each for each in readings if each.at_ns == record.at_ns), readings[0])
        if reading.at_ns != record.at_ns:
            found.add(
                record.index,
                record.seq,
                "changed",
                f"at_ns says {record.at_ns}, its commit {reading.at_ns}",
            )
        if as_stored.facts != reading.facts:
            found.add(
                record.index,
                record.seq,
                "facts differ",
                _difference(stored[record.seq], reading.facts),
            )


def _difference(stored: Sequence[FactRow], proved: Sequence[FactRow]) -> str:
    if len(stored) != len(proved):
        return f"{len(stored)} facts rows, and its commit holds {len(proved)}"
    positions = [
        str(truth.position) for row, truth in zip(stored, proved, strict=True) if row != truth
    ]
    return f"facts rows differ from the commit at position {', '.join(positions)}"


async def _compare_end(store: Store, log: Log | None, found: Findings) -> None:
    """Add a finding if the log ends before the archive, which only follows it."""
    end = await _end(store)
    last = (await log.bounds())[1] if log is not None else end
    if last < end:
        found.add(
            last,
            last + 1,
            "inserted",
            f"the log ends at {last}, and the archive holds {end - last} more: the log was lost "
            "or restored, or they were added (docs/howto/restore.md)",
        )


async def _compare_stream(
    store: Store, stream: AsyncIterator[list[Entry]], found: Findings, streamed: Streamed
) -> None:
    """Add the differences from the stream, and count in `streamed` what was compared."""
    end = await _end(store)
    async for batch in stream:
        if not batch:
            break
        last = batch[-1].seq
        if last > end:
            end = await _caught_up(store, last)
        records = await asyncio.to_thread(store.between, batch[0].seq, last)
        _compare_batch(batch, {record.seq: record for record in records}, end, found)
        streamed.add(batch)
    if streamed.last > end:
        found.add(
            end,
            end + 1,
            "behind",
            (
                f"the archive is behind the stream by {streamed.last - end}, and did not move for "
                f"{CATCH_UP_S:.0f} s: start the audit service, then verify again"
            ),
        )


async def _caught_up(store: Store, seq: int) -> int:
    """Return the archive's end once it has reached `seq`, or did not move for CATCH_UP_S."""
    end, polls = await _end(store), 0
    while end < seq and polls * CATCH_UP_POLL_S < CATCH_UP_S:
        await asyncio.sleep(CATCH_UP_POLL_S)
        now = await _end(store)
        end, polls = now, polls + 1 if now == end else 0
    return end


async def _end(store: Store) -> int:
    head = await asyncio.to_thread(store.head)
    return head.seq if head else 0


def _compare_batch(
    batch: Sequence[Entry], records: dict[int, Record], end: int, found: Findings
) -> None:
    for entry in batch:
        record = records.get(entry.seq)
        if record is None and entry.seq <= end:
            found.add(
                entry.seq - 1,
                entry.seq,
                "stream differs",
                "the stream holds it, the archive does not",
            )
        elif record and (record.subject, record.data) != (entry.subject, entry.data):
            found.add(
                record.index,
                record.seq,
                "stream differs",
                "subject or bytes are not those of the stream",
            )


def render(report: Report) -> str:
    """Return one line per finding, and a summary line at the end."""
    lines = [f"index {f.index} seq {f.seq}: {f.wrong}: {f.detail}" for f in report.findings]
    if report.more:
        lines.append(f"and {counted(report.more, 'more finding')}")
    if report.ended:
        lines.append(f"the comparison with the log ended early: {report.ended}")
    total = len(report.findings) + report.more
    verdict = counted(total, "finding") if total else "the chain is whole"
    beside = f", {report.streamed} compared with the stream"
    if report.streamed is None:
        beside = ", not compared with the log"
    elif report.since > 1:
        beside += f" from commit {report.since} on"
    beside += ", not to its end" if report.ended else ""
    return "\n".join(
        [
            *lines,
            (
                f"{counted(report.commits, 'commit')} checked{beside}: {verdict}; head "
                f"{report.head_hash}"
            ),
        ]
    )
