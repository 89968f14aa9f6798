"""Reads what recorders of collectives wrote: PyTorch's flight recorder and NCCL's RAS. Pure.

Both come from the job, so they may hold anything: what does not have the expected form is left out.
Tests: tests/unit/test_diagnosis_collectives.py.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeGuard

from libs.common.diagnosis.evidence import (
    COLLECTIVES_MAX,
    TEXT_MAX,
    Collective,
    RasCommunicator,
    RasRank,
)

ENTRIES_MAX: Final = 20_000
RANKS_MAX: Final = 65_536
COMMUNICATORS_MAX: Final = 64
COMPLETED: Final = "completed"
# Numbers beyond this are no numbers of a recorder, and those of 64 bits are the last to be encoded.
NUMBER_MAX: Final = 1 << 53
RANK_DIGITS: Final = 7
UNKNOWN: Final = "unknown"
# The counts of RAS: names of NCCL's functions.
FUNCTIONS_MAX: Final = 32


def from_recorder(dump: object) -> tuple[Collective, ...]:
    """Return the last collective of each process group in a dump of the flight recorder.

    Sends and receives between two ranks are left out: they have numbers of their own.
    """
    last: dict[str, Collective] = {}
    entries = _get(dump, "entries")
    for entry in entries[-ENTRIES_MAX:] if isinstance(entries, list) else ():
        found = _collective(entry, dump)
        if found is not None and (
            found.group not in last or (found.seq, found.ended) >= _order(last[found.group])
        ):
            last[found.group] = found
    return tuple(last.values())[:COLLECTIVES_MAX]


def _order(one: Collective) -> tuple[int, bool]:
    return one.seq, one.ended


def _collective(entry: object, dump: object) -> Collective | None:
    seq, op = _get(entry, "collective_seq_id"), _get(entry, "profiling_name")
    if not _is_number(seq) or not isinstance(op, str) or _get(entry, "is_p2p") is True:
        return None
    group = _group(entry)
    return Collective(
        group=group,
        seq=seq,
        op=_text(op.rpartition(":")[2]),
        ended=_get(entry, "state") == COMPLETED,
        ranks=_ranks(_get(_get(dump, "pg_config"), group)),
    )


def _group(entry: object) -> str:
    """Return the name of an entry's process group."""
    named = _get(entry, "process_group")
    if isinstance(named, list | tuple) and named:
        return _text(named[0])
    return _text(_get(entry, "pg_id"))


def _ranks(config: object) -> tuple[int, ...]:
    """Return the ranks of a group, which the recorder writes as a text such as "[0, 1]"."""
    text = _get(config, "ranks")
    if not isinstance(text, str):
        return ()
    words = (word.strip() for word in text.strip("[] ").split(",", RANKS_MAX)[:RANKS_MAX])
    return tuple(
        int(word)
        for word in words
        if word.isascii() and word.isdecimal() and len(word) <= RANK_DIGITS
    )


def from_ras(status: object) -> tuple[RasCommunicator, ...]:
    """Return the communicators in the JSON status of NCCL's RAS subsystem."""
    found = _get(status, "communicators")
    return tuple(
        _communicator(each)
        for each in (found[:COMMUNICATORS_MAX] if isinstance(found, list) else ())
    )


def _communicator(found: object) -> RasCommunicator:
    size = _get(found, "size")
    seen = [
        RasRank(rank, _counts(_get(each, "collective_counts")))
        for each in _listed(_get(found, "ranks"))
        if _is_number(rank := _get(each, "rank"))
    ]
    missing = [
        RasRank(rank, missing=True)
        for each in _listed(_get(found, "missing_ranks"))
        if _is_number(rank := _get(each, "rank"))
    ]
    return RasCommunicator(
        name=_text(_get(found, "hash")),
        size=size if _is_number(size) else len(seen) + len(missing),
        ranks=(*seen, *missing),
    )


def _counts(found: object) -> dict[str, int]:
    if not isinstance(found, Mapping):
        return {}
    return {
        _text(name): count
        for name, count in list(found.items())[:FUNCTIONS_MAX]
        if _is_number(count)
    }


def _listed(found: object) -> Sequence[Any]:
    return found[:RANKS_MAX] if isinstance(found, list) else ()


def _is_number(found: object) -> TypeGuard[int]:
    return type(found) is int and abs(found) <= NUMBER_MAX


def _text(found: object) -> str:
    """Return a text or a number as a text that can be encoded; of anything else, nothing.

    A list that holds itself many times has a text of any length.
    """
    if isinstance(found, str):
        return found[:TEXT_MAX].encode(errors="replace").decode()
    return str(found) if _is_number(found) else UNKNOWN


def _get(found: object, name: str) -> object:
    return found.get(name) if isinstance(found, Mapping) else None
