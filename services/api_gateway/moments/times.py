"""Finds the commit of a time in the log, by binary search.

The clocks of nodes are not trusted, so only commits of the control plane count. Their clocks may
differ by milliseconds; then a time finds one of the neighbouring commits. Tests:
tests/unit/test_moment_times.py.
"""

from contextlib import aclosing
from typing import Final, NamedTuple

from libs.common import reading, subjects
from libs.common.transport.log import Entry
from services.api_gateway.views.entries import Entries

# Commits of nodes that one probe passes over, one by one and then together.
SINGLE_MAX: Final = 8
WINDOW_MAX: Final = 4_096


class Dated(NamedTuple):
    """A commit of the control plane and its time."""

    seq: int
    at_ns: int


async def seq_at(entries: Entries, oldest: int, last: int, at_ns: int) -> int:
    """Return the last commit that was made at `at_ns` or before, at least `oldest`.

    Raises Unavailable.
    """
    low, high = oldest, last
    while low < high:
        middle = (low + high + 1) // 2
        found = await dated(entries, low, middle)
        if found is not None and found.at_ns > at_ns:
            high = found.seq - 1
        else:
            low = middle
    return low


async def dated(entries: Entries, after: int, upto: int) -> Dated | None:
    """Return the last commit of the control plane behind `after`, up to `upto`.

    Returns None if there is none among the last WINDOW_MAX. Raises Unavailable.
    """
    for seq in range(upto, max(after, upto - SINGLE_MAX), -1):
        entry = await entries.get(seq)
        if entry is not None and (found := dated_entry(entry)) is not None:
            return found
    last = None
    begin = max(after, upto - WINDOW_MAX)
    if begin < upto - SINGLE_MAX:
        async with aclosing(entries.scan(begin, upto - SINGLE_MAX)) as slices:
            async for piece in slices:
                last = next(filter(None, map(dated_entry, reversed(piece))), last)
    return last


def dated_entry(entry: Entry) -> Dated | None:
    """Return the commit with its time; None if a node made it."""
    if subjects.writer_kind(entry.subject) == subjects.NODE_KIND:
        return None
    return Dated(entry.seq, reading.read_alone(entry.subject, entry.data).at_ns)
