"""Reads the time and one row per fact from a commit, for every kind of fact.

Pure. It uses no schema on purpose: facts of a newer version are archived too, and one rule reads an
archive of many years. A malformed commit is archived with time 0 and no rows, and so is a node's
commit that every reader of the log ignores for its size. So nothing that a writer sends can stop
the archive. `verify.py` reads by the same rule and compares. `portions` bounds what one transaction
holds.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple, TypeVar

import msgpack  # type: ignore[import-untyped]
import msgspec

from libs.common import subjects

# The largest commit of a node that has rows: the bounds of the log's readers (`facts/sizes.py`,
# `facts/packing.py`). They are repeated here because archives were written by them: if those rise,
# `verify.py` must also accept what was archived as unreadable before.
NODE_BYTES_MAX: Final = 512 << 10
NODE_FACTS_MAX: Final = 2_048
# What a transaction of the archive holds; a single commit may hold more.
PORTION_BYTES: Final = 8 << 20
PORTION_ROWS: Final = 20_000

AT_NS: Final = 5
FACTS: Final = 7
# Ids of Muster are shorter, and databases limit the length of indexed texts.
TEXT_MAX: Final = 255
NS_MAX: Final = (1 << 63) - 1


class FactRow(msgspec.Struct, frozen=True):
    """The index row of one fact.

    The stream sequence and the position in the commit say where the fact's bytes are.
    """

    seq: int
    position: int
    kind: str
    job_id: str | None
    node_id: str | None
    at_ns: int


class Reading(msgspec.Struct, frozen=True):
    """The time and the fact rows of one commit."""

    at_ns: int
    facts: tuple[FactRow, ...]


class Weight(NamedTuple):
    """The bytes and fact rows of one commit."""

    bytes: int
    rows: int


UNREADABLE: Final = Reading(0, ())
ItemT = TypeVar("ItemT")


def read(seq: int, subject: str, data: bytes) -> Reading:
    """Read one commit; return UNREADABLE if the bytes are not one, or a node's and too large."""
    is_node = subjects.writer_kind(subject) == subjects.NODE_KIND
    if is_node and len(data) > NODE_BYTES_MAX:
        return UNREADABLE
    return _read(seq, data, NODE_FACTS_MAX if is_node else None)


def earlier(seq: int, data: bytes) -> Reading:
    """Read one commit as versions did that had no bound for nodes."""
    return _read(seq, data, None)


def portions(
    items: Iterable[ItemT],
    weight: Callable[[ItemT], Weight],
    bytes_max: int,
    rows_max: int,
) -> Iterator[list[ItemT]]:
    """Yield the items in lists within both bounds; an item that exceeds one is alone in its list.

    Items are taken only when they are needed.
    """
    portion: list[ItemT] = []
    size = rows = 0
    for item in items:
        its = weight(item)
        if portion and (size + its.bytes > bytes_max or rows + its.rows > rows_max):
            yield portion
            portion, size, rows = [], 0, 0
        portion.append(item)
        size += its.bytes
        rows += its.rows
    if portion:
        yield portion


def _read(seq: int, data: bytes, facts_max: int | None) -> Reading:
    commit = _unpack(data)
    if not isinstance(commit, list) or len(commit) <= FACTS or not isinstance(commit[FACTS], list):
        return UNREADABLE
    if facts_max is not None and len(commit[FACTS]) > facts_max:
        return UNREADABLE
    at_ns = commit[AT_NS]
    if type(at_ns) is not int or not 0 <= at_ns <= NS_MAX:
        return UNREADABLE
    rows = tuple(_row(seq, position, fact, at_ns) for position, fact in enumerate(commit[FACTS]))
    known = tuple(row for row in rows if row is not None)
    return Reading(at_ns, known) if len(known) == len(rows) else UNREADABLE


def commit_facts(data: bytes) -> list[dict[str, Any]]:
    """Return the facts of a readable commit as they were written: fields by name."""
    facts: list[dict[str, Any]] = _unpack(data)[FACTS]
    return facts


def _unpack(data: bytes) -> Any:  # noqa: ANN401 - the bytes may hold any type
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
    """Return a short text field of a fact; None for other values.

    PostgreSQL does not store NUL, so a text with NUL counts as none.
    """
    value = fact.get(key) if isinstance(fact, dict) else None
    return (
        value if isinstance(value, str) and len(value) <= TEXT_MAX and "\0" not in value else None
    )
