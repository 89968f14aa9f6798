"""A heap that drops stale entries as it grows.

Pure. A leading scheduler takes entries from its heaps. A following one only adds them, and would
keep the entries of all jobs that ever ended. Tests: tests/unit/test_swept_heap.py.
"""

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Any, Final, Generic, TypeVar

Entry = TypeVar("Entry", bound=tuple[Any, ...])
# A heap up to this size keeps its stale entries.
SWEPT: Final = 4_096


class SweptHeap(Generic[Entry]):
    """A heap of entries, each of which may become stale.

    It holds at most SWEPT entries, and twice those that were live at the last sweep.
    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._swept_at = SWEPT

    def add(self, entry: Entry, is_live: Callable[[Entry], bool]) -> None:
        """Add an entry. If the heap has doubled, first drop the entries that are not live or are
        there twice.
        """
        if len(self.entries) >= self._swept_at:
            self.entries = [each for each in dict.fromkeys(self.entries) if is_live(each)]
            heapify(self.entries)
            self._swept_at = SWEPT + 2 * len(self.entries)
        heappush(self.entries, entry)

    def first(self) -> Entry | None:
        """Return the smallest entry; None if there is none."""
        return self.entries[0] if self.entries else None

    def take(self) -> Entry:
        """Remove the smallest entry and return it."""
        return heappop(self.entries)

    def take_before(self, time_ns: int) -> Iterator[Entry]:
        """Remove the entries that begin with a time before this one, and yield them in order.

        Entries that are added meanwhile count.
        """
        while self.entries and self.entries[0][0] < time_ns:
            yield heappop(self.entries)
