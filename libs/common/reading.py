"""Turns an entry of the log into a commit. All readers use this code, so that they agree.

Pure. A node is an untrusted writer: its key may be stolen, and its agent may be of another version.
Any fault of a node's commit makes the whole commit `Ignored`: it moves the position of every
reader, counts as ignored, distrusts that node (`fold.py`), and stops no reader. Schedulers,
quota and gateways are core writers: a fault in their commits raises Corrupt or TooNew, and an
operator must act. Each kind of fact has one kind of writer. A fact of any other writer becomes
`Unentitled`: no fold applies it, and no page or bill contains it.
"""

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from libs.common import bounds, subjects
from libs.common import facts as f
from libs.common.errors import Corrupt, TooNew
from libs.common.facts import (
    COMMIT_BYTES_MAX,
    NUMBER_MAX,
    VERSION,
    AnyFact,
    Commit,
    Ignored,
    Unentitled,
    Unknown,
)
from libs.common.facts.nesting import DEPTH_MAX, VALUES_MAX, too_deep
from libs.common.facts.packing import NODE_FACTS_MAX
from libs.common.state.cluster import WriterMark

# Untrusted writers: their commits may hold anything.
UNTRUSTED: Final = (subjects.NODE_KIND,)
# The year 2116, in nanoseconds: a writer that continues from such a time stays below 2**63.
AT_NS_MAX: Final = 1 << 62
EPOCH_MAX: Final = 1 << 53
KIND: Final = "commit.ignored"
UNENTITLED: Final = "fact.ignored"
REASON_MAX: Final = 200


def read(writers: Mapping[str, WriterMark], subject: str, data: bytes) -> Commit:
    """Return the next commit of a subject. `writers` has the last commit of each subject.

    Raises Corrupt and TooNew for a core writer's commit. `fold.check_place` checks the numbers of
    core writers.
    """
    commit = read_alone(subject, data)
    if (
        is_untrusted(subject)
        and not is_ignored(commit)
        and not follows(writers.get(subject), commit)
    ):
        return ignored(subject, f"commit number {commit.number} does not follow the one before")
    return commit


def read_alone(subject: str, data: bytes) -> Commit:
    """Return a commit without checking its number, to show it. Raises like `read`."""
    return _entitled(subject, _decoded(subject, data))


def _decoded(subject: str, data: bytes) -> Commit:
    if not is_untrusted(subject):
        commit = f.decode(data)
        if commit.writer != subject:
            raise Corrupt(f"a commit on {subject} says that {commit.writer} wrote it")
        return commit
    if len(data) > COMMIT_BYTES_MAX:
        return ignored(subject, f"{len(data)} bytes are more than {COMMIT_BYTES_MAX}")
    if too_deep(data):
        return ignored(
            subject,
            f"it nests more than {DEPTH_MAX} levels, or holds more than {VALUES_MAX} values",
        )
    try:
        wrong = _wrong_outside(subject, *f.outline(data))
        if wrong:
            return ignored(subject, wrong)
        commit = f.decode(data)
    except (Corrupt, TooNew) as error:
        return ignored(subject, str(error))
    wrong = _wrong(commit)
    return ignored(subject, wrong) if wrong else commit


def _entitled(subject: str, commit: Commit) -> Commit:
    """Return the commit with `Unentitled` in place of each fact that its writer may not record."""
    writer, writer_id = subjects.writer_kind(subject), subjects.node_of(subject)
    wrong = [
        place
        for place, fact in enumerate(commit.facts)
        if not subjects.may_record(writer, writer_id, fact)
    ]
    if not wrong:
        return commit
    facts = list(commit.facts)
    for place in wrong:
        facts[place] = _replaced(subject, facts[place])
    return replace(commit, facts=tuple(facts))


def _replaced(subject: str, fact: AnyFact | Unknown) -> AnyFact | Unknown:
    """Return `Unentitled` for a fact; itself if this version does not know who may record it."""
    kind = f.kind_of(fact)
    writer = subjects.writer_kind(subject)
    if isinstance(fact, Unknown) and subjects.WRITER_OF_KIND.get(kind, writer) == writer:
        return fact
    lists_too_long = not isinstance(fact, Unknown) and bounds.bounded(fact) is None
    return Unentitled(
        name=UNENTITLED,
        raw=b"",
        reason=f"{kind}: a fact that {subject} may not record"[:REASON_MAX],
        distrusts=bounds.too_long(fact) if is_untrusted(subject) and lists_too_long else "",
    )


def ignored(subject: str, reason: str) -> Commit:
    """Return a commit that readers fold in place of one that they ignore."""
    fact = Ignored(name=KIND, raw=b"", reason=reason[:REASON_MAX])
    return Commit(
        version=VERSION,
        min_reader=VERSION,
        writer=subject,
        number=0,
        epoch=0,
        at_ns=0,
        seen=0,
        facts=(fact,),
    )


def is_ignored(commit: Commit) -> bool:
    return bool(commit.facts) and isinstance(commit.facts[0], Ignored)


def is_untrusted(subject: str) -> bool:
    return subjects.writer_kind(subject) in UNTRUSTED


def follows(mark: WriterMark | None, commit: Commit) -> bool:
    """Return whether the commit has the next number.

    After an ignored commit every number is accepted, because the agent cannot know which one
    readers counted.
    """
    if mark is None:
        return commit.number == 1
    return mark.ignored or commit.number == f.next_number(mark.number)


def _wrong_outside(subject: str, writer: str, facts: int) -> str:
    """Return the fault of an untrusted writer's commit before its facts are decoded; else empty.

    Decoding takes time for each fact.
    """
    if writer != subject:
        return f"it says that {writer!r} wrote it"
    return f"{facts} facts are more than {NODE_FACTS_MAX}" if facts > NODE_FACTS_MAX else ""


def _wrong(commit: Commit) -> str:
    """Return the fault of a decoded commit of an untrusted writer; empty if there is none."""
    if not 1 <= commit.number <= NUMBER_MAX:
        return f"commit number {commit.number} is not in 1 to {NUMBER_MAX}"
    if not 0 <= commit.epoch <= EPOCH_MAX or not 0 <= commit.seen < 1 << 63:
        return f"epoch {commit.epoch} or sequence {commit.seen} is out of bounds"
    if not 0 <= commit.at_ns <= AT_NS_MAX:
        return f"its time {commit.at_ns} is not in 0 to {AT_NS_MAX}"
    return ""
