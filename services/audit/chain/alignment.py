"""Finds what was done to a chain: each record is traced to the place its hash proves, and the
places are laid out in archive order.

Pure. A record is genuine for home h when its hash is right for its bytes at h. Runs of genuine
records that follow one another are segments; the longest rising series of segments is the backbone,
and what is not on it was changed, is missing, was inserted or reordered. Index and sequence columns
are only hints, so renumbering hides nothing. `verify.py` feeds it; the property test edits.
"""

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise
from typing import Final, Literal, Protocol

import msgspec

from services.audit.chain.chain import GENESIS, link

LOOK_AROUND: Final = (
    16  # how far from the expected place a record with untrue numbers is searched for
)
SEGMENTS_MAX: Final = 2_000  # an archive in more pieces than this is a ruin, and is reported as one
SLOTS_MAX: Final = (
    10_000  # empty places looked at one by one; a forged number may leave any number of them
)
KEPT_MAX: Final = 64  # broken records whose bytes are kept, to see whether they were only exchanged

Wrong = Literal[
    "changed", "missing", "inserted", "reordered", "facts differ", "stream differs", "behind"
]


class Finding(msgspec.Struct, frozen=True):
    """One fault: the record by chain index and stream sequence, what is wrong, and how
    that shows.
    """

    index: int
    seq: int
    wrong: Wrong
    detail: str


class Linked(Protocol):
    """What a record must have; `store.Record` has it."""

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
    """Records that lie one after another and belong so. `home` is None for one broken record."""

    at: int  # stored index of the first
    seq: int
    position: int  # how many records lie before it
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
    """The records seen so far, as segments."""

    segments: list[Segment] = []
    position: int = 0
    expected: int = 0  # the home after the last genuine record
    resumed: int = (
        0  # what was expected when a record last lay elsewhere: the next one may go on from there
    )
    kept: int = 0
    ruined_at: Finding | None = None


def step(walk: Walk, row: Linked) -> None:
    """Takes the next record in archive order. In a ruin the rest is only counted."""
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
    seq_off = row.seq - 1 - (row.index if home is None else home)
    kept = row if keep else None
    walk.segments.append(
        Segment(
            row.index,
            row.seq,
            walk.position - 1,
            home,
            1,
            seq_off,
            row.previous_hash,
            row.hash,
            kept,
        )
    )


def _home(row: Linked, expected: int, resumed: int) -> int | None:
    likely: list[int] = [row.seq - 1, row.index, expected, resumed]
    for place in (expected, resumed):
        likely.extend(range(place - LOOK_AROUND, place + LOOK_AROUND + 1))
    for home in dict.fromkeys(likely):
        if home >= 0 and link(home + 1, row.subject, row.data, home, row.previous_hash) == row.hash:
            return home
    return None


def findings(walk: Walk) -> list[Finding]:
    """What is wrong with the chain, in chain order; empty when it is whole from genesis to its
    head.
    """
    _trace_far(walk)
    whole = [segment for segment in walk.segments if segment.home is not None]
    backbone = _backbone(whole)
    ids = {id(segment) for segment in backbone}
    strays = [segment for segment in whole if id(segment) not in ids]
    found = [_stray(segment, backbone) for segment in strays]
    found += _gaps(walk.segments, backbone, [s for s in strays if not _covers(backbone, s.start)])
    found += _twice(backbone) + _borders(backbone) + _numbers(backbone)
    found += [walk.ruined_at] if walk.ruined_at else []
    return sorted(found, key=lambda finding: finding.index)


def _trace_far(walk: Walk) -> None:
    """Tries the kept broken records at every place that nothing fills: one that was moved far,
    under untrue numbers, is proved there.
    """
    empty = _empty(walk)
    for segment in walk.segments:
        row = segment.row
        home = next((h for h in empty if row and _fits(row, h, row.previous_hash, row.hash)), None)
        if home is not None:
            segment.home, segment.seq_off = home, segment.seq - 1 - home


def _empty(walk: Walk) -> list[int]:
    """The first places, up to the archive's length, that no genuine record fills."""
    empty: list[int] = []
    end = 0
    for segment in sorted((s for s in walk.segments if s.home is not None), key=lambda s: s.start):
        empty.extend(range(end, min(segment.start, end + KEPT_MAX)))
        end = max(end, segment.end)
    empty.extend(range(end, min(walk.position, end + KEPT_MAX)))
    return empty[: 2 * KEPT_MAX]


def _backbone(whole: list[Segment]) -> list[Segment]:
    """The rising series of segments that holds the most records; of equals, the one that lies where
    it belongs.
    """
    best: list[int] = []
    before: list[int] = []
    for i, segment in enumerate(whole):
        gains = {
            j: best[j] + _weight(segment, whole[j]) for j in range(i) if _rises(whole[j], segment)
        }
        j = max(gains, key=gains.__getitem__, default=-1)
        best.append(gains[j] if j >= 0 else _weight(segment, None))
        before.append(j)
    series: list[Segment] = []
    i = max(range(len(whole)), key=best.__getitem__, default=-1)
    while i >= 0:
        series.append(whole[i])
        i = before[i]
    return series[::-1]


def _rises(before: Segment, segment: Segment) -> bool:
    return before.start < segment.start and before.end < segment.end


def _weight(segment: Segment, before: Segment | None) -> int:
    twice = max(before.end - segment.start, 0) if before else 0
    return 2 * (segment.count - twice) + (segment.at == segment.start)


def _covers(backbone: list[Segment], home: int) -> bool:
    i = bisect_right(backbone, home, key=lambda segment: segment.start)
    return i > 0 and home < backbone[i - 1].end


def _stray(segment: Segment, backbone: list[Segment]) -> Finding:
    more = f" (and {segment.count - 1} after it)" if segment.count > 1 else ""
    if _covers(backbone, segment.start):
        return Finding(
            segment.at, segment.seq, "inserted", f"a second record of index {segment.start}{more}"
        )
    text = f"this is the record of index {segment.start}, and lies at {segment.at}{more}"
    return Finding(segment.at, segment.start + 1, "reordered", text)


class Gap(msgspec.Struct):
    """Places of the chain that no record in its place fills, and the broken records
    that lie there.
    """

    slots: list[int]
    beyond: range  # the places after SLOTS_MAX
    broken: list[Segment]
    previous: str  # the hash before the first place
    following: (
        str | None
    )  # what the record behind the last place says was there; None at the archive's end


def _gaps(segments: list[Segment], backbone: list[Segment], moved: list[Segment]) -> list[Finding]:
    gaps = _list_gaps(segments, backbone, moved)
    changed: dict[int, tuple[Segment, str, str]] = {}
    found: list[Finding] = []
    for gap in gaps:
        found += _settle(gap, changed)
    return found + [_changed(slot, changed) for slot in changed]


def _list_gaps(segments: list[Segment], backbone: list[Segment], moved: list[Segment]) -> list[Gap]:
    elsewhere = {home for segment in moved for home in range(segment.start, segment.end)}
    gaps: list[Gap] = []
    end, previous, broken = 0, GENESIS, list[Segment]()
    following = iter(backbone)
    target = next(following, None)
    for segment in segments:
        if segment.home is None:
            broken.append(segment)
        elif segment is target:
            cut = min(segment.start, end + SLOTS_MAX)
            slots = [slot for slot in range(end, cut) if slot not in elsewhere]
            gaps.append(
                Gap(slots, range(cut, segment.start), broken, previous, segment.first_previous)
            )
            end, previous, broken = segment.end, segment.last_hash, []
            target = next(following, None)
    gaps.append(Gap(list(range(end, end + len(broken))), range(0), broken, previous, None))
    return gaps


def _settle(gap: Gap, changed: dict[int, tuple[Segment, str, str]]) -> list[Finding]:
    """Gives each broken record a place: its own if that is empty, else the next empty one; what is
    left over is inserted or missing.
    """
    slots = dict.fromkeys(gap.slots)
    alone = len(slots) == 1
    left: list[Segment] = []
    for segment in gap.broken:
        slot = segment.at if segment.at in slots else segment.seq - 1
        if slot in slots:
            del slots[slot]
            changed[slot] = _claim(segment, gap, alone)
        else:
            left.append(segment)
    for slot, segment in zip(list(slots), list(left), strict=False):
        del slots[slot]
        left.remove(segment)
        changed[slot] = _claim(segment, gap, alone)
    extra = [
        Finding(
            s.at,
            s.seq,
            "inserted",
            "no place in the chain is free for this record, and its hash is not its own",
        )
        for s in left
    ]
    return (
        extra
        + _missing(list(slots))
        + ([_absent(gap.beyond[0], len(gap.beyond))] if gap.beyond else [])
    )


def _missing(slots: list[int]) -> list[Finding]:
    """One finding per run of absent records, however long."""
    found: list[Finding] = []
    start = 0
    for i, slot in enumerate(slots):
        if i + 1 == len(slots) or slots[i + 1] != slot + 1:
            found.append(_absent(slots[start], i + 1 - start))
            start = i + 1
    return found


def _absent(first: int, count: int) -> Finding:
    text = "the record is not in the archive" + (
        f", nor are the {count - 1} after it" if count > 1 else ""
    )
    return Finding(first, first + 1, "missing", text)


def _claim(segment: Segment, gap: Gap, alone: bool) -> tuple[Segment, str, str]:
    """(record, hash before its place, hash at its place), from its neighbours if both stand, else
    from the record's own columns.
    """
    if alone and gap.following is not None:
        return segment, gap.previous, gap.following
    return segment, segment.first_previous, segment.last_hash


def _changed(slot: int, changed: dict[int, tuple[Segment, str, str]]) -> Finding:
    segment, previous, claimed = changed[slot]
    row = segment.row
    if row is None:
        return Finding(segment.at, segment.seq, "changed", "its hash is not that of its content")
    if _fits(row, slot, previous, claimed):
        return Finding(
            slot,
            slot + 1,
            "changed",
            "its content is as recorded; its hash, its previous hash or its numbers are not",
        )
    for other, (_, before, at) in changed.items():
        if other != slot and _fits(row, other, before, at):
            return Finding(
                slot, slot + 1, "reordered", f"it holds what was recorded at index {other}"
            )
    return Finding(slot, slot + 1, "changed", "its hash is not that of its content")


def _fits(row: Linked, slot: int, previous: str, claimed: str) -> bool:
    return link(slot + 1, row.subject, row.data, slot, previous) == claimed


def _twice(backbone: list[Segment]) -> list[Finding]:
    """Places that two neighbours of the backbone both fill; what comes after chains to the second,
    so the first is the copy.
    """
    found: list[Finding] = []
    for before, segment in pairwise(backbone):
        count = before.end - segment.start
        if count > 0:
            more = f" (and of the {count - 1} after it)" if count > 1 else ""
            at = before.at + segment.start - before.start
            found.append(
                Finding(
                    at,
                    segment.start + 1,
                    "inserted",
                    f"a second record of index {segment.start}{more}",
                )
            )
    return found


def _borders(backbone: list[Segment]) -> list[Finding]:
    """Records that were rewritten together with their hash: what comes next still chains to the old
    one.
    """
    found: list[Finding] = []
    torn = [
        _torn(backbone[i - 1] if i else None, segment) for i, segment in enumerate(backbone)
    ] + [False]
    for i, segment in enumerate(backbone):
        if not torn[i] or (segment.count == 1 and torn[i + 1]):
            continue
        blamed = max(segment.start - 1, 0)
        text = (
            "rewritten with its hash"
            if blamed == segment.start
            else "rewritten with its hash, or all after it were"
        )
        found.append(
            Finding(
                blamed,
                blamed + 1,
                "changed",
                f"{text}: index {segment.start} chains to another hash",
            )
        )
    return found


def _torn(before: Segment | None, segment: Segment) -> bool:
    if before is None:
        return segment.start == 0 and segment.first_previous != GENESIS
    return before.end == segment.start and before.last_hash != segment.first_previous


def _numbers(backbone: Iterable[Segment]) -> list[Finding]:
    """Genuine records under untrue numbers.

    Dense renumbering behind something missing or inserted is explained by that finding.
    """
    found: list[Finding] = []
    for segment in backbone:
        off = segment.at - segment.start
        if (off == 0 or segment.at == segment.position) and segment.seq_off in (0, off):
            continue
        text = (
            f"numbered index {segment.at} and sequence {segment.seq}, but its hash proves index "
            f"{segment.start}"
        )
        found.append(Finding(segment.start, segment.start + 1, "changed", text))
    return found
