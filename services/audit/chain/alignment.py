"""Names what was done to a chain: lays its segments out in archive order and reports each fault.

Pure. The longest rising series of segments is the backbone. What is not on it was changed, is
missing, was inserted or was reordered. `segments.py` cuts the archive into segments, `gaps.py`
explains the gaps, tests/property/test_audit_edits.py edits archives and checks the findings.
"""

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise

from services.audit.chain import gaps, segments
from services.audit.chain.chain import GENESIS
from services.audit.chain.segments import Finding, Segment, Walk


def findings(walk: Walk) -> list[Finding]:
    """Return every fault in chain order; empty if the chain is whole from genesis to its head."""
    _trace_far(walk)
    whole = [segment for segment in walk.segments if segment.home is not None]
    backbone = _backbone(whole)
    ids = {id(segment) for segment in backbone}
    strays = [segment for segment in whole if id(segment) not in ids]
    found = [_stray_finding(segment, backbone) for segment in strays]
    moved = [segment for segment in strays if not _covers(backbone, segment.start)]
    found += gaps.findings(walk.segments, backbone, moved)
    found += _duplicates(backbone) + _rewritten_records(backbone) + _numbers(backbone)
    found += [walk.ruined_at] if walk.ruined_at else []
    return sorted(found, key=lambda finding: finding.index)


def _trace_far(walk: Walk) -> None:
    """Find the home of broken records that were moved far under false numbers.

    Each kept record is tried at every free index.
    """
    free = _free_indexes(walk)
    for segment in walk.segments:
        row = segment.row
        if row is None:
            continue
        homes = (home for home in free if gaps.fits(row, home, row.previous_hash, row.hash))
        home = next(homes, None)
        if home is not None:
            segment.home, segment.seq_off = home, segment.seq - 1 - home


def _free_indexes(walk: Walk) -> list[int]:
    """Return the first indexes, up to the archive's length, that no genuine record fills."""
    free: list[int] = []
    end = 0
    for segment in sorted((s for s in walk.segments if s.home is not None), key=lambda s: s.start):
        free.extend(range(end, min(segment.start, end + segments.KEPT_MAX)))
        end = max(end, segment.end)
    free.extend(range(end, min(walk.position, end + segments.KEPT_MAX)))
    return free[: 2 * segments.KEPT_MAX]


def _backbone(whole: list[Segment]) -> list[Segment]:
    """Return the rising series of segments with the most records.

    Among equal series the one whose segments lie at their own index wins.
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
    overlap = max(before.end - segment.start, 0) if before else 0
    return 2 * (segment.count - overlap) + (segment.at == segment.start)


def _covers(backbone: list[Segment], home: int) -> bool:
    i = bisect_right(backbone, home, key=lambda segment: segment.start)
    return i > 0 and home < backbone[i - 1].end


def _stray_finding(segment: Segment, backbone: list[Segment]) -> Finding:
    more = f" (and {segment.count - 1} after it)" if segment.count > 1 else ""
    if _covers(backbone, segment.start):
        return Finding(
            segment.at, segment.seq, "inserted", f"a second record of index {segment.start}{more}"
        )
    text = f"this is the record of index {segment.start}, and lies at {segment.at}{more}"
    return Finding(segment.at, segment.start + 1, "reordered", text)


def _duplicates(backbone: list[Segment]) -> list[Finding]:
    """Report indexes that two neighbouring segments both fill.

    The record after them chains to the second one, so the first one is the copy.
    """
    found: list[Finding] = []
    for before, segment in pairwise(backbone):
        count = before.end - segment.start
        if count > 0:
            more = f" (and of the {count - 1} after it)" if count > 1 else ""
            at = before.at + segment.start - before.start
            text = f"a second record of index {segment.start}{more}"
            found.append(Finding(at, segment.start + 1, "inserted", text))
    return found


def _rewritten_records(backbone: list[Segment]) -> list[Finding]:
    """Report records that were rewritten together with their hash.

    The record after them still chains to the old hash.
    """
    found: list[Finding] = []
    torn = [_torn(backbone[i - 1] if i else None, segment) for i, segment in enumerate(backbone)]
    torn.append(False)
    for i, segment in enumerate(backbone):
        if not torn[i] or (segment.count == 1 and torn[i + 1]):
            continue
        blamed = max(segment.start - 1, 0)
        text = (
            "rewritten with its hash"
            if blamed == segment.start
            else "rewritten with its hash, or all after it were"
        )
        text = f"{text}: index {segment.start} chains to another hash"
        found.append(Finding(blamed, blamed + 1, "changed", text))
    return found


def _torn(before: Segment | None, segment: Segment) -> bool:
    if before is None:
        return segment.start == 0 and segment.first_previous != GENESIS
    return before.end == segment.start and before.last_hash != segment.first_previous


def _numbers(backbone: Iterable[Segment]) -> list[Finding]:
    """Report genuine records that carry false numbers.

    Dense renumbering after a missing or inserted record is explained by that record's finding.
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
