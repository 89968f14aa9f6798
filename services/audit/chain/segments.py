"""Cuts an archive into segments: runs of genuine records that follow one another.

Pure. A record is genuine for home h when its hash is right for its bytes at chain index h. The
index and sequence columns are only hints for the search, so renumbering hides nothing.
`alignment.py` lays the segments out; `verify.py` feeds the records.
"""

from typing import Final, Literal, Protocol

import msgspec

from services.audit.chain.chain import link

# A record with false numbers is searched for this far around the expected index.
LOOK_AROUND: Final = 16
# An archive in more pieces than this is reported as ruined, and the rest is not traced.
SEGMENTS_MAX: Final = 2_000
# The bytes of this many broken records are kept, to see whether records only changed places.
KEPT_MAX: Final = 64

Wrong = Literal[
    "changed", "missing", "inserted", "reordered", "facts differ", "stream differs", "behind"
]


class Finding(msgspec.Struct, frozen=True):
    """One fault: the record's chain index and stream sequence, what is wrong, and the evidence."""

    index: int
    seq: int
    wrong: Wrong
    detail: str


class Linked(Protocol):
    """The fields of a record of the chain; `store.Record` is one."""

    @property
    def index(self) -> int: ...
    @property
    def seq(self) -> int: ...
    @property
    def subject(self) -> str: ...
    @property
    def data(self) -> bytes: ...
    @property
    def hash(self) -> str: ...
    @property
    def previous_hash(self) -> str: ...


class Segment(msgspec.Struct):
    """A run of genuine records in their true order, or one broken record.

    `at` and `seq` are the numbers that the first record carries; `position` is the number of
    records before it in the archive; `home` is the chain index that its hash proves (None for a
    broken record); `seq_off` is the distance between its sequence and the true one. `row` is kept
    for some broken records only.
    """

    at: int
    seq: int
    position: int
    home: int | None
    count: int
    seq_off: int
    first_previous: str
    last_hash: str
    row: Linked | None = None

    @property
    def start(self) -> int:
        assert self.home is not None, "a broken record has no home"
        return self.home

    @property
    def end(self) -> int:
        return self.start + self.count


class Walk(msgspec.Struct):
    """The records read so far, as segments.

    `expected` is the index after the last genuine record. `resumed` is the index that was expected
    when a record last lay elsewhere, because the next record may go on from there.
    """

    segments: list[Segment] = []
    position: int = 0
    expected: int = 0
    resumed: int = 0
    kept: int = 0
    ruined_at: Finding | None = None


def step(walk: Walk, row: Linked) -> None:
    """Add the next record in archive order. After SEGMENTS_MAX pieces records are only counted."""
    walk.position += 1
    if walk.ruined_at:
        return
    home = _home(row, walk.expected, walk.resumed)
    if home is not None:
        walk.resumed = walk.resumed if home == walk.expected else walk.expected
        walk.expected = home + 1
    if not _continues(walk, row, home):
        _begin(walk, row, home)


def _continues(walk: Walk, row: Linked, home: int | None) -> bool:
    last = walk.segments[-1] if walk.segments else None
    if last is None or last.home is None or home != last.end or row.previous_hash != last.last_hash:
        return False
    if row.index - home != last.at - last.start or row.seq - 1 - home != last.seq_off:
        return False
    last.count += 1
    last.last_hash = row.hash
    return True


def _begin(walk: Walk, row: Linked, home: int | None) -> None:
    if len(walk.segments) >= SEGMENTS_MAX:
        text = f"the archive is in more than {SEGMENTS_MAX} pieces; nothing from here on was traced"
        walk.ruined_at = Finding(row.index, row.seq, "changed", text)
        return
    keep = home is None and walk.kept < KEPT_MAX
    walk.kept += keep
    walk.segments.append(
        Segment(
            at=row.index,
            seq=row.seq,
            position=walk.position - 1,
            home=home,
            count=1,
            seq_off=row.seq - 1 - (row.index if home is None else home),
            first_previous=row.previous_hash,
            last_hash=row.hash,
            row=row if keep else None,
        )
    )


def _home(row: Linked, expected: int, resumed: int) -> int | None:
    """Return the chain index for which the record's hash is right; None if there is none near."""
    likely: list[int] = [row.seq - 1, row.index, expected, resumed]
    for place in (expected, resumed):
        likely.extend(range(place - LOOK_AROUND, place + LOOK_AROUND + 1))
    for home in dict.fromkeys(likely):
        if (
            home >= 0
            and link(
                seq=home + 1,
                subject=row.subject,
                data=row.data,
                index=home,
                previous_hash=row.previous_hash,
            )
            == row.hash
        ):
            return home
    return None
