"""Stores the archive in SQLite or PostgreSQL: each commit's exact bytes, its chain link, its facts.

A portion of a batch is one transaction, and all of them are on disk when `append` returns. An
append is idempotent: entries that are there already are compared and skipped. So a caller that does
not know whether its last batch was stored appends it again. There is one writer: a second one
violates the primary key and is Fenced. Blocking: call it from a thread. It has no twin; tests use
real files.
"""

from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import groupby, islice
from typing import Any, Final

import msgspec
import sqlalchemy as sa

from libs.common.errors import Corrupt
from libs.common.transport.log import Entry
from services.audit.chain.chain import Link, extend
from services.audit.store import engine, schema
from services.audit.store.faults import telling
from services.audit.store.reading import (
    NS_MAX,
    PORTION_BYTES,
    PORTION_ROWS,
    FactRow,
    Reading,
    Weight,
    portions,
    read,
)
from services.audit.store.tables import (
    BY_NODE,
    BY_OWN_NODE,
    COMMITS,
    FACTS,
    by_writers,
    in_commit,
)

# Commits in memory at once while iterating: at most 128 MiB.
PAGE: Final = 256
# The columns of the last link.
LAST: Final = (
    sa.select(
        COMMITS.c.index,
        COMMITS.c.seq,
        COMMITS.c.subject,
        COMMITS.c.hash,
        COMMITS.c.previous_hash,
    )
    .order_by(COMMITS.c.index.desc())
    .limit(1)
)


class Record(msgspec.Struct, frozen=True):
    """One archived commit. `at_ns` is its writer's clock, 0 where the commit could not be read."""

    index: int
    seq: int
    subject: str
    data: bytes
    at_ns: int
    hash: str
    previous_hash: str


class Store:
    """One archive.

    Call `migrate` first. All methods raise the typed errors of `faults.py`. With `read_only` no
    file is created: a missing SQLite archive is Refused.
    """

    def __init__(self, url: str, read_only: bool = False) -> None:
        self._engine = engine.of(url, read_only)
        self._where = self._engine.url.render_as_string(hide_password=True)
        self._head: Link | None = None
        self._head_known = False

    def migrate(self) -> None:
        """Migrate the schema to this version. Raises TooNew if a newer version has migrated it."""
        with telling("migrating the archive", self._where):
            schema.upgrade(self._engine)

    def migrate_to(self, revision: str) -> tuple[str, str]:
        """Migrate the schema to `revision`; return the revisions before and after.

        Raises Refused for an unknown revision.
        """
        self._head_known = False
        with telling(f"migrating the archive to {revision}", self._where):
            return schema.move(self._engine, revision)

    def close(self) -> None:
        self._engine.dispose()

    def head(self) -> Link | None:
        """Return the last link from the database; None if the archive is empty.

        For the writer, which appends after it.
        """
        self._head = self.head_now()
        self._head_known = True
        return self._head

    def head_now(self) -> Link | None:
        """Return the last link like `head`, for readers beside the writer."""
        rows = self._rows("reading the head", LAST)
        return _link(rows[0]) if rows else None

    def young(self, after: int, since_ns: int, until_ns: int = NS_MAX) -> int:
        """Return the first sequence after `after` whose commit was made at `since_ns` or later.

        A time after `until_ns` does not count: a clock was wrong, or a node recorded a false time.
        If there is no such commit, return the sequence after the head.
        """
        c = COMMITS.c
        times = (c.at_ns >= since_ns, c.at_ns <= until_ns)
        query = sa.select(c.seq).where(c.seq > after, *times).order_by(c.seq).limit(1)
        rows = self._rows("reading ages", query)
        if rows:
            return int(rows[0][0])
        head = self.head_now()
        return head.seq + 1 if head is not None else after + 1

    def append(self, entries: Sequence[Entry], begin: int = 1) -> list[Link]:
        """Store the entries after the head and return their links.

        An empty archive starts at `begin`. Entries that are there already are compared and skipped.
        Raises Corrupt on a gap, if an archived entry differs or if the database no longer ends in
        the head, Fenced if another archive has written, DiskFull, Unavailable.
        """
        links: list[Link] = []
        left = entries
        while left:
            done, stored = self.append_portion(left, begin)
            links += stored
            left = left[done:]
        return links

    def append_portion(
        self, entries: Sequence[Entry], begin: int = 1
    ) -> tuple[int, Sequence[Link]]:
        """Append the first of the entries, as many as one transaction may hold.

        Return how many of the entries the archive holds now, and the links of the new ones. Raises
        like `append`.
        """
        head = self._head if self._head_known else self.head()
        last = head.seq if head else 0
        known = [entry for entry in entries if entry.seq <= last]
        self._compare(known)
        fresh = (
            (entry, read(entry.seq, entry.subject, entry.data))
            for entry in entries
            if entry.seq > last
        )
        portion = next(portions(fresh, _weight, PORTION_BYTES, PORTION_ROWS), [])
        links = extend(head, [entry for entry, _ in portion], begin)
        if links:
            self._head_known = False  # a transaction that fails may have been stored nevertheless
            self._write(head, portion, links)
            self._head, self._head_known = links[-1], True
        return len(known) + len(portion), links

    def commits(self, after: int | None = None, limit: int | None = None) -> Iterator[Record]:
        """Yield the commits after stream sequence `after` (None: all) in the chain's order.

        They are read in pages, so no transaction stays open.
        """
        left = limit
        index = after - 1 if after is not None else None
        while left is None or left > 0:
            page = self._page(index, PAGE if left is None else min(PAGE, left))
            yield from page
            if not page:
                return
            index = page[-1].index
            left = None if left is None else left - len(page)

    def between(self, first: int, last: int) -> list[Record]:
        """Return the commits with the stream sequences first to last, in order."""
        query = sa.select(COMMITS).where(COMMITS.c.seq.between(first, last)).order_by(COMMITS.c.seq)
        return [_record(row) for row in self._rows("reading commits", query)]

    def of_kinds(self, kinds: Sequence[str], since_ns: int, until_ns: int) -> Iterator[Record]:
        """Yield the commits with facts of these kinds from `since_ns` to before `until_ns`.

        Their writers may record such facts.
        """
        found = merge(*(self._seqs_of_kind(kind, since_ns, until_ns) for kind in kinds))
        distinct = (seq for seq, _ in groupby(found))
        while seqs := list(islice(distinct, PAGE)):
            commits = sa.select(COMMITS).where(COMMITS.c.seq.in_(seqs)).order_by(COMMITS.c.seq)
            yield from (_record(row) for row in self._rows("reading commits", commits))

    def _seqs_of_kind(self, kind: str, since_ns: int, until_ns: int) -> Iterator[int]:
        """Yield the sequences of the commits for `of_kinds` of one kind, in order.

        With one kind the database reads each page in the order of its index. With several it would
        sort all that is left for every page.
        """
        c, after = FACTS.c, 0
        wanted = by_writers((kind,)) & (c.at_ns >= since_ns) & (c.at_ns < until_ns)
        while True:
            query = sa.select(c.seq).where(wanted, c.seq > after).distinct()
            rows = self._rows("looking up facts", query.order_by(c.seq).limit(PAGE))
            yield from (int(row[0]) for row in rows)
            if len(rows) < PAGE:
                return
            after = rows[-1][0]

    def facts_of(self, seqs: Sequence[int]) -> list[FactRow]:
        """Return all fact rows of these commits."""
        query = (
            sa.select(FACTS).where(FACTS.c.seq.in_(seqs)).order_by(FACTS.c.seq, FACTS.c.position)
        )
        return [FactRow(*row) for row in self._rows("reading facts", query)]

    def seqs_of(self, job: str, kinds: Sequence[str], upto: int) -> list[tuple[int, int]]:
        """Return the positions of a job's facts of these kinds, in order, up to and including
        commit `upto`. Their writers may record such facts.
        """
        c = FACTS.c
        query = (
            sa.select(c.seq, c.position)
            .where(c.job_id == job, c.seq <= upto, by_writers(kinds))
            .order_by(c.seq, c.position)
        )
        return [(int(row[0]), int(row[1])) for row in self._rows("looking up facts", query)]

    def commits_about(self, job: str, after: int, limit: int) -> list[int]:
        """Return the sequences of the first commits about a job behind commit `after`, from its
        first one by a core writer on.
        """
        c = FACTS.c
        begun = (
            sa.select(c.seq).where(c.job_id == job, in_commit(~BY_NODE)).order_by(c.seq).limit(1)
        )
        rows = self._rows("looking up a job", begun)
        if not rows:
            return []
        query = (
            sa.select(c.seq)
            .where(
                c.job_id == job,
                c.seq >= max(rows[0][0], after + 1),
                in_commit(~BY_NODE | BY_OWN_NODE),
            )
            .distinct()
            .order_by(c.seq)
            .limit(limit)
        )
        return [int(row[0]) for row in self._rows("looking up a job", query)]

    def has(self, count: int, kinds: Sequence[str], after: int, before: int) -> bool:
        """Return whether at least so many facts of these kinds are in the commits between two,
        exclusive. Their writers may record such facts.
        """
        c = FACTS.c
        query = (
            sa.select(c.seq)
            .where(by_writers(kinds), c.seq > after, c.seq < before)
            .offset(count - 1)
            .limit(1)
        )
        return bool(self._rows("counting facts", query))

    def orphans(self, limit: int) -> list[int]:
        """Return stream sequences that have fact rows but no commit."""
        known = sa.exists().where(COMMITS.c.seq == FACTS.c.seq)
        query = sa.select(FACTS.c.seq).where(~known).distinct().order_by(FACTS.c.seq).limit(limit)
        return [_number(row[0]) for row in self._rows("reading facts", query)]

    def _page(self, index: int | None, limit: int) -> list[Record]:
        query = sa.select(COMMITS).order_by(COMMITS.c.index).limit(limit)
        if index is not None:
            query = query.where(COMMITS.c.index > index)
        return [_record(row) for row in self._rows("reading commits", query)]

    def _rows(self, what: str, query: sa.Select[Any]) -> Sequence[Sequence[Any]]:
        with telling(what, self._where), self._engine.connect() as connection:
            return connection.execute(query).all()

    def _compare(self, entries: Sequence[Entry]) -> None:
        if not entries:
            return
        archived = {record.seq: record for record in self.between(entries[0].seq, entries[-1].seq)}
        for entry in entries:
            record = archived.get(entry.seq)
            if record is None or (record.subject, record.data) != (entry.subject, entry.data):
                raise Corrupt(
                    f"commit {entry.seq} of the log differs from that in {self._where}: the log or "
                    "the archive was changed or restored; run `muster audit verify` before you "
                    "start the audit service again"
                )

    def _write(
        self, head: Link | None, portion: Sequence[tuple[Entry, Reading]], links: Sequence[Link]
    ) -> None:
        commits: list[dict[str, Any]] = []
        facts: list[dict[str, Any]] = []
        for (entry, reading), link in zip(portion, links, strict=True):
            commits.append(
                {**msgspec.structs.asdict(link), "data": entry.data, "at_ns": reading.at_ns}
            )
            facts.extend(msgspec.structs.asdict(row) for row in reading.facts)
        with (
            telling(f"appending {len(commits)} commits", self._where),
            self._engine.begin() as connection,
        ):
            self._require_head(connection, head)
            connection.execute(sa.insert(COMMITS), commits)
            if facts:
                connection.execute(sa.insert(FACTS), facts)

    def _require_head(self, connection: sa.Connection, head: Link | None) -> None:
        """Raise Corrupt if the database does not end in `head`, which the new commits continue.

        If it ends later, another process has written, and the primary key refuses the new commits.
        """
        row = connection.execute(LAST).first()
        stored = _link(row) if row is not None else None
        end, known = (-1 if each is None else each.index for each in (stored, head))
        if head is None or stored == head or end > known:
            return
        found = (
            f"holds another commit {head.seq} than the one that this process stored"
            if end == known
            else f"ends at commit {stored.seq if stored else 0}, and this process stored up to "
            f"{head.seq}"
        )
        raise Corrupt(
            f"the archive in {self._where} {found}: the database was restored from an older backup "
            "or changed. Start the audit service again: it reads missing commits from the log, if "
            "the log still holds them. Then run `muster audit verify`"
        )


def _weight(read_entry: tuple[Entry, Reading]) -> Weight:
    entry, reading = read_entry
    return Weight(len(entry.data), len(reading.facts))


def _record(row: Sequence[Any]) -> Record:
    """Return a row as a record, also if an edit in SQLite left values of other types."""
    index, seq, subject, data, at_ns, its_hash, previous_hash = row
    return Record(
        index=index,
        seq=_number(seq),
        subject=_text(subject),
        data=data,
        at_ns=_number(at_ns),
        hash=_text(its_hash),
        previous_hash=_text(previous_hash),
    )


def _link(row: Sequence[Any]) -> Link:
    index, seq, subject, its_hash, previous_hash = row
    return Link(
        index=index,
        seq=_number(seq),
        subject=_text(subject),
        hash=_text(its_hash),
        previous_hash=_text(previous_hash),
    )


def _number(value: object) -> int:
    """Return the number; -1, which no record has, for a value that is none."""
    return value if isinstance(value, int) else -1


def _text(value: object) -> str:
    """Return the text; for a value that is none, a text that no record has."""
    return value if isinstance(value, str) else f"(no text) {value!r}"
