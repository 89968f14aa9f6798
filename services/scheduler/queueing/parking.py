"""Groups that a limit blocks are parked until the limit leaves room for them again.

A scheduling pass must not examine what it cannot place. A tenant at its limit may have jobs of
endlessly many sizes, and each size is blocked for itself. A parked group is not examined again
before the room that blocked it has grown to its need: a pass compares the room with the smallest
parked need only. So the cost of many sizes falls on what makes room, which is the tenant's own jobs
that end, and not on every decision. Pure. Tests: tests/property/test_candidates.py.
"""

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

UNBOUNDED: Final = 1 << 80
# No limit blocks the need.
FREE: Final = -1


class Need(NamedTuple):
    """Quantities that limits compare, each with the room in the same place.

    `share` is the least that the job takes, in hundredths of a GPU; `pools` are bytes of memory
    pools; `hours` is the most that an allocation can hold, in hundredths of a GPU times
    milliseconds.
    """

    share: int
    pools: int = 0
    hours: int = 0


class Room:
    """Remaining room under the limits of an owner.

    `count_hours` is called only if a need has hours.
    """

    __slots__ = ("_count_hours", "_hours", "pools", "share")

    def __init__(
        self,
        share: int = UNBOUNDED,
        pools: int = UNBOUNDED,
        count_hours: Callable[[], int] | None = None,
    ) -> None:
        self.share = share
        self.pools = pools
        self._count_hours = count_hours
        self._hours: int | None = None

    @property
    def hours(self) -> int:
        if self._hours is None:
            self._hours = UNBOUNDED if self._count_hours is None else self._count_hours()
        return self._hours

    def left(self, place: int) -> int:
        """Return what is left in this place of a need."""
        return self.hours if place == 2 else self.pools if place else self.share

    def blocked_by(self, need: Need) -> int:
        """Return the place of the need for which there is too little room; FREE if there is none.

        A need of 0 fits, except where nothing at all may start (a share below 0).
        """
        if need.share > self.share:
            return 0
        if need.pools and need.pools > self.pools:
            return 1
        return 2 if need.hours and need.hours > self.hours else FREE


EVERY_ROOM: Final = Room()
NO_ROOM: Final = Room(share=-1)


class HasNeed(Protocol):
    """A group of jobs with one need."""

    @property
    def need(self) -> Need:
        """Return the need of all its jobs."""
        ...


G = TypeVar("G", bound=HasNeed)


class Parked(Generic[G]):
    """The parked groups of one owner: by the place that blocks them, the smallest need first."""

    def __init__(self) -> None:
        self.heaps: tuple[list[tuple[int, int, G]], ...] = ([], [], [])
        self._number = 0

    def __bool__(self) -> bool:
        return any(self.heaps)

    def park(self, group: G, place: int) -> None:
        """Add a group that lacks room in this place of its need."""
        self._number += 1
        heappush(self.heaps[place], (group.need[place], self._number, group))

    def wake(self, room: Room) -> Iterator[G]:
        """Remove and yield the groups for which there is room now."""
        for place, heap in enumerate(self.heaps):
            while heap and heap[0][0] <= room.left(place):
                group = heappop(heap)[2]
                blocked_by = room.blocked_by(group.need)
                if blocked_by == FREE:
                    yield group
                else:
                    self.park(group, blocked_by)
