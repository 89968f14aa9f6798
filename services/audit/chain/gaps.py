"""Explains the gaps between the segments of the backbone: records that are missing, changed or
inserted.

Pure. A gap is a run of chain indexes that no genuine record fills, with the broken records that lie
there. `alignment.py` computes the backbone.
"""

from typing import Final

import msgspec

from services.audit.chain.chain import GENESIS, link
from services.audit.chain.segments import Finding, Linked, Segment

# Indexes of a gap that are examined one by one; a forged number may leave any number of them.
SLOTS_MAX: Final = 10_000


class Gap(msgspec.Struct):
    """A run of chain indexes (slots) that no genuine record fills, and the broken records there.

    `beyond` are the slots after SLOTS_MAX. `previous` is the hash before the first slot.
    `following` is the previous hash that the record after the last slot names; None at the
    archive's end.
    """

    slots: list[int]
    beyond: range
    broken: list[Segment]
    previous: str
    following: str | None


class Claim(msgspec.Struct):
    """A broken record in a slot, with the hashes that the chain had before and at that slot."""

    segment: Segment
    previous: str
    hash: str


def findings(
    segments: list[Segment], backbone: list[Segment], moved: list[Segment]
) -> list[Finding]:
    """Return the faults of all gaps. `moved` are genuine segments that lie outside their place."""
    claims: dict[int, Claim] = {}
    found: list[Finding] = []
    for gap in _list_gaps(segments, backbone, moved):
        found += _settle(gap, claims)
    return found + [_changed(slot, claims) for slot in claims]


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
                Gap(
                    slots,
                    beyond=range(cut, segment.start),
                    broken=broken,
                    previous=previous,
                    following=segment.first_previous,
                )
            )
            end, previous, broken = segment.end, segment.last_hash, []
            target = next(following, None)
    gaps.append(
        Gap(
            slots=list(range(end, end + len(broken))),
            beyond=range(0),
            broken=broken,
            previous=previous,
            following=None,
        )
    )
    return gaps


def _settle(gap: Gap, claims: dict[int, Claim]) -> list[Finding]:
    """Give each broken record a slot: its own if that is free, else the next free one.

    Records without a slot were inserted; slots without a record are missing.
    """
    slots = dict.fromkeys(gap.slots)
    single = len(slots) == 1
    left: list[Segment] = []
    for segment in gap.broken:
        slot = segment.at if segment.at in slots else segment.seq - 1
        if slot in slots:
            del slots[slot]
            claims[slot] = _claim(segment, gap, single)
        else:
            left.append(segment)
    for slot, segment in zip(list(slots), list(left), strict=False):
        del slots[slot]
        left.remove(segment)
        claims[slot] = _claim(segment, gap, single)
    text = "no place in the chain is free for this record, and its hash does not match its content"
    inserted = [Finding(segment.at, segment.seq, "inserted", text) for segment in left]
    beyond = [_absent(gap.beyond[0], len(gap.beyond))] if gap.beyond else []
    return inserted + _missing(list(slots)) + beyond


def _missing(slots: list[int]) -> list[Finding]:
    """Return one finding for each run of absent records, however long it is."""
    found: list[Finding] = []
    start = 0
    for i, slot in enumerate(slots):
        if i + 1 == len(slots) or slots[i + 1] != slot + 1:
            found.append(_absent(slots[start], i + 1 - start))
            start = i + 1
    return found


def _absent(first: int, count: int) -> Finding:
    more = f", nor are the {count - 1} after it" if count > 1 else ""
    return Finding(first, first + 1, "missing", f"the record is not in the archive{more}")


def _claim(segment: Segment, gap: Gap, single: bool) -> Claim:
    """Return the hashes around a slot: the neighbours' if both are genuine, else the record's."""
    if single and gap.following is not None:
        return Claim(segment, gap.previous, gap.following)
    return Claim(segment, segment.first_previous, segment.last_hash)


def _changed(slot: int, claims: dict[int, Claim]) -> Finding:
    claim = claims[slot]
    segment, row = claim.segment, claim.segment.row
    if row is None:
        text = "its hash does not match its content"
        return Finding(segment.at, segment.seq, "changed", text)
    if fits(row, slot, claim.previous, claim.hash):
        text = "its content is as recorded; its hash, its previous hash or its numbers are not"
        return Finding(slot, slot + 1, "changed", text)
    for other, their in claims.items():
        if other != slot and fits(row, other, their.previous, their.hash):
            text = f"it holds what was recorded at index {other}"
            return Finding(slot, slot + 1, "reordered", text)
    return Finding(slot, slot + 1, "changed", "its hash does not match its content")


def fits(row: Linked, slot: int, previous: str, claimed: str) -> bool:
    """Return whether the record has the hash `claimed` at this slot, after the hash `previous`."""
    return (
        link(seq=slot + 1, subject=row.subject, data=row.data, index=slot, previous_hash=previous)
        == claimed
    )
