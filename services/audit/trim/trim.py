"""Decides up to which commit to trim the log, and proves that the archive holds those commits.

Pure. Commits are trimmed by age and by the stream's size. Size goes first: over `full_percent` the
number of recent commits to keep does not count. No commit is trimmed that the archive, the
scheduler or quota has not read; a service that does not answer has read nothing. `trimmer.py` acts
on the decision.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from libs.common.errors import Corrupt
from libs.common.transport.log import Entry
from services.audit.chain.chain import GENESIS, link
from services.audit.chain.segments import Linked

# The most commits in one purge, which locks the stream's store.
STEP_MAX: Final = 50_000
# Commits that stay even if the log is full.
KEEP_LEAST: Final = 100
# Fewer commits than `keep_commits` divided by this are not worth a snapshot.
STEP_PART: Final = 10


class Policy(msgspec.Struct, frozen=True):
    """The rule by which the log is trimmed.

    Commits older than `keep_ns` go, except the latest `keep_commits`. Over `full_percent` of the
    stream's bytes younger ones go too, except the latest KEEP_LEAST, because a full log accepts no
    commits.
    """

    keep_commits: int
    keep_ns: int
    full_percent: int


class Standing(msgspec.Struct, frozen=True):
    """The state of the log and its readers, as stream sequences.

    `base` is the sequence of the stored snapshot: the commits up to it may be gone. `young` is the
    first commit after it that is not too old yet. `readers` are the positions of the services that
    must have read a commit before it goes, by name.
    """

    base: int
    young: int
    last: int
    commits: int
    bytes: int
    bytes_max: int
    readers: Mapping[str, int]


class Decision(msgspec.Struct, frozen=True):
    """Trim up to `upto`; 0 means not now. `waits_for` names the reader that prevents more."""

    upto: int = 0
    waits_for: str = ""


def decide(policy: Policy, standing: Standing) -> Decision:
    """Return a purge of at most STEP_MAX commits, or none."""
    surplus = _surplus(policy, standing)
    aged = min(standing.young - 1, standing.last - policy.keep_commits)
    due = max(
        aged, min(standing.base + surplus, standing.last - min(KEEP_LEAST, policy.keep_commits))
    )
    least = standing.base + (1 if surplus else max(1, policy.keep_commits // STEP_PART))
    if due < least:
        return Decision()
    slowest = min(standing.readers, key=standing.readers.__getitem__)
    upto = min(due, standing.readers[slowest], standing.base + STEP_MAX)
    return Decision(
        upto if upto >= least else 0, slowest if standing.readers[slowest] < due else ""
    )


def _surplus(policy: Policy, standing: Standing) -> int:
    """Return how many commits of average size exceed the stream's allowed bytes."""
    over = standing.bytes - standing.bytes_max * policy.full_percent // 100
    if not standing.bytes_max or over <= 0:
        return 0
    return -(-over * standing.commits // standing.bytes)


def prove(entries: Sequence[Entry], records: Sequence[Linked]) -> None:
    """Prove that each entry is archived with exactly these bytes and a correct link.

    `records` are the archive's for these sequences and the one before. Raises Corrupt.
    """
    archived = {record.seq: record for record in records}
    for entry in entries:
        record, before = archived.get(entry.seq), archived.get(entry.seq - 1)
        if record is None:
            raise Corrupt(f"the archive does not hold commit {entry.seq}; see docs/howto/trim.md")
        if (record.subject, record.data) != (entry.subject, entry.data):
            raise Corrupt(
                f"commit {entry.seq} of the log differs from the archive's: run `muster audit "
                "verify`"
            )
        previous = before.hash if before else GENESIS
        if record.previous_hash != previous or record.hash != link(
            seq=entry.seq,
            subject=entry.subject,
            data=entry.data,
            index=record.index,
            previous_hash=previous,
        ):
            raise Corrupt(
                f"the archive's chain is broken at commit {entry.seq}: run `muster audit verify`"
            )
