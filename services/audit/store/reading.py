"""What the archive reads out of a commit: when it was made, and a row for each fact, whatever its
kind.

Pure, and schema-free on purpose: facts of a newer version are recorded too, and an archive of years
is read by one rule. A commit that is not what a commit must be is archived all the same, with time
0 and no rows; nothing that a writer sends can stop the archive. `verify.py` reads again by the same
rule and compares.
"""

from typing import Any, Final

import msgpack  # type: ignore[import-untyped]
import msgspec

AT_NS: Final = 5
FACTS: Final = 7
TEXT_MAX: Final = (
    255  # longer names than this are no ids of ours, and no database wants them in an index
)
NS_MAX: Final = (1 << 63) - 1


class FactRow(msgspec.Struct, frozen=True):
    """One fact of the archive: stream sequence and position in its commit say where its
    bytes are.
    """

    seq: int
    position: int
    kind: str
    job_id: str | None
    node_id: str | None
    at_ns: int


class Reading(msgspec.Struct, frozen=True):
    at_ns: int
    facts: tuple[FactRow, ...]


UNREADABLE: Final = Reading(0, ())


def read(seq: int, data: bytes) -> Reading:
    """The rows of one commit; UNREADABLE when it is not one."""
    commit = _unpack(data)
    if not isinstance(commit, list) or len(commit) <= FACTS or not isinstance(commit[FACTS], list):
        return UNREADABLE
    at_ns = commit[AT_NS]
    if type(at_ns) is not int or not 0 <= at_ns <= NS_MAX:
        return UNREADABLE
    rows = tuple(_row(seq, position, fact, at_ns) for position, fact in enumerate(commit[FACTS]))
    known = tuple(row for row in rows if row is not None)
    return Reading(at_ns, known) if len(known) == len(rows) else UNREADABLE


def commit_facts(data: bytes) -> list[dict[str, Any]]:
    """The facts of a commit that `read` could read, as they were written: fields by name."""
    facts: list[dict[str, Any]] = _unpack(data)[FACTS]
    return facts


def _unpack(data: bytes) -> Any:  # noqa: ANN401 - it is whatever the bytes say
    try:
        return msgpack.unpackb(
            data, raw=False, unicode_errors="replace", strict_map_key=False, timestamp=0
        )
    except (
        ValueError,
        TypeError,
        RecursionError,
    ):  # ValueError is the parent of all that msgpack raises; TypeError: an unhashable key
        return None


def _row(seq: int, position: int, fact: Any, at_ns: int) -> FactRow | None:  # noqa: ANN401
    kind = _text(fact, "kind")
    return (
        FactRow(
            seq=seq,
            position=position,
            kind=kind,
            job_id=_text(fact, "job_id"),
            node_id=_text(fact, "node_id"),
            at_ns=at_ns,
        )
        if kind
        else None
    )


def _text(fact: Any, key: str) -> str | None:  # noqa: ANN401
    """A short text of a fact; None for anything else, and for the NUL that PostgreSQL does not
    store.
    """
    value = fact.get(key) if isinstance(fact, dict) else None
    return (
        value if isinstance(value, str) and len(value) <= TEXT_MAX and "\0" not in value else None
    )
