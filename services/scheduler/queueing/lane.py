"""A lane of the queue: jobs in order, grouped by shape and by what limits compare.

Pure. Jobs of equal shape stand together, and shapes of one owner with equal needs form one blocked
group. A shape that does not fit is therefore tried once per change, not once per job. A group that
a limit blocks is parked (`parking.py`). Shapes that this cluster could never hold are in a group of
their own; after a change of the hardware they are checked again, some in each pass.

Removal is lazy: a stale entry is dropped when it comes to the head, or when there are many of them.
"""

from bisect import insort
from collections import deque
from collections.abc import Callable, Collection, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final, NamedTuple

from libs.common.model import JobId, TenantId
from services.scheduler.queueing.parking import FREE, Need, Parked, Room
from services.scheduler.queueing.shape import LaneId, Owner, Shape, Waiting

# Stale entries are removed when there are this many more of them than of live ones.
SPARE: Final = 1_000


class Checks(NamedTuple):
    """The checks on waiting jobs: what the limits of an owner leave, whether the cluster could hold
    the job at all, and the tenants of which enough jobs were examined in this pass.
    """

    room_of: Callable[[Owner], Room]
    is_possible: Callable[[Waiting], bool]
    full: Collection[TenantId] = ()


class BlockedGroup:
    """The shapes of one owner with one need, or those that the cluster could never hold.

    `firsts` is a heap with the first entry of each shape.
    """

    __slots__ = ("firsts", "is_parked", "need")

    def __init__(self, need: Need = Need(0)) -> None:  # noqa: B008  immutable
        self.firsts: list[Waiting] = []
        self.need = need
        self.is_parked = False


class Lane:
    """The waiting jobs of one queue, or of one tenant in it.

    `by_shape` holds the entries of each shape, in order. `groups` maps a shape to its group, and
    `by_need` finds the group of a new shape. `never` are the shapes that this cluster could never
    hold, and `unchecked` those of them to check again, as a heap. `card_bytes` is the memory of the
    cluster's largest card.

    `front` is a heap that contains the first entry of every group that is not parked, and perhaps
    stale entries; `parked_front` the same of parked groups. Of `entry_count` entries, `alive` are
    live.
    """

    def __init__(self, waiting: dict[JobId, Waiting], lane_id: LaneId, card_bytes: int = 0) -> None:
        self.waiting = waiting
        self.lane_id = lane_id
        self.card_bytes = card_bytes
        self.by_shape: dict[Shape, deque[Waiting]] = {}
        self.groups: dict[Shape, BlockedGroup] = {}
        self.by_need: dict[tuple[Owner, Need], BlockedGroup] = {}
        self.never = BlockedGroup()
        self.unchecked: list[Waiting] = []
        self.front: list[Waiting] = []
        self.parked_front: list[Waiting] = []
        self.parked: dict[Owner, Parked[BlockedGroup]] = {}
        self.entry_count = 0
        self.alive = 0
        self.is_scanned = False

    def add(self, entry: Waiting) -> None:
        """Add the entry of a job.

        No scan of the lane may be open, because a scan takes entries out until it ends.
        """
        assert not self.is_scanned, f"{self.lane_id} changes during a scan"
        entries = self.by_shape.get(entry.shape)
        if entries is None:
            entries = self.by_shape[entry.shape] = deque()
            self.groups[entry.shape] = self._group_of(entry.shape)
        insort(entries, entry)
        self.entry_count += 1
        self.alive += 1
        if entries[0] is entry:
            group = self.groups[entry.shape]
            if len(entries) > 1:
                group.firsts.remove(entries[1])
                heapify(group.firsts)
            self._push(group, entry)
        if self.entry_count > SPARE + 2 * self.alive or len(self.by_need) > SPARE + len(
            self.by_shape
        ):
            self.regroup()
        else:
            self._shorten()

    def _group_of(self, shape: Shape) -> BlockedGroup:
        """Return the group of a shape that the cluster could hold."""
        need = shape.need(self.card_bytes)
        key = (shape.owner, need)
        found = self.by_need.get(key)
        if found is None:
            found = self.by_need[key] = BlockedGroup(need)
        return found

    def _push(self, group: BlockedGroup, first: Waiting) -> None:
        """Add the first entry of a shape to its group."""
        heappush(group.firsts, first)
        if group.firsts[0] is first:
            heappush(self._heap(group), first)

    def _heap(self, group: BlockedGroup) -> list[Waiting]:
        return self.parked_front if group.is_parked else self.front

    def heads(self) -> Iterator[Waiting]:
        """Yield the first waiting job of each shape, in order and lazily."""
        return self._scan(None)

    def candidates(self, checks: Checks) -> Iterator[Waiting]:
        """Yield the same jobs without the groups that a limit blocks, without impossible shapes,
        and without those of full tenants.

        A group that is blocked is parked. Impossible shapes are remembered until `reopen`.
        """
        return self._scan(checks)

    def _scan(self, checks: Checks | None) -> Iterator[Waiting]:
        """Yield entries in order. At most one scan of a lane may be open at a time.

        The scan takes entries out of the heaps and puts them back when it ends. A second one would
        silently miss them, so it raises AssertionError.
        """
        assert not self.is_scanned, f"two scans of {self.lane_id} are open at a time"
        scanned: list[Waiting] = []
        left_out: dict[BlockedGroup, None] = {}
        allowed: set[BlockedGroup] = set()
        full: Collection[TenantId] = () if checks is None else checks.full
        is_allowed = None if checks is None else _Allowed(self, checks, allowed, left_out)
        self.is_scanned = True
        try:
            while (entry := self._next(is_allowed is None)) is not None:
                group = self.groups[entry.shape]
                if (
                    is_allowed is not None
                    and (group not in allowed or full)
                    and not is_allowed(group, entry)
                ):
                    continue
                if checks is not None and not checks.is_possible(entry):
                    self.groups[entry.shape] = self.never
                else:
                    yield entry
                scanned.append(entry)
                self._advance(group)
        finally:
            self.is_scanned = False
            if scanned or left_out:
                self._restore(scanned, left_out)

    def _restore(self, scanned: list[Waiting], left_out: dict[BlockedGroup, None]) -> None:
        """Put back the entries and groups that a scan took out."""
        for entry in scanned:
            group = self.groups[entry.shape]
            heappush(group.firsts, entry)
            left_out[group] = None
        for group in left_out:
            heappush(self._heap(group), group.firsts[0])
        self._shorten()

    def _next(self, of_all: bool) -> Waiting | None:
        """Drop stale entries, and return the first live one of the groups that are not parked, or
        of all groups; None if all were scanned.
        """
        open_one = self._next_in(self.front, False)
        if not of_all:
            return open_one
        parked_one = self._next_in(self.parked_front, True)
        if open_one is None or parked_one is None:
            return open_one or parked_one
        return min(open_one, parked_one)

    def _next_in(self, heap: list[Waiting], is_parked: bool) -> Waiting | None:
        while heap:
            entry = heap[0]
            group = self.groups.get(entry.shape)
            if (
                group is None
                or not group.firsts
                or group.firsts[0] is not entry
                or group.is_parked is not is_parked
            ):
                heappop(heap)
            elif self.waiting.get(entry.job_id) is entry:
                return entry
            else:
                self._drop_stale(entry, group)
        return None

    def _drop_stale(self, entry: Waiting, group: BlockedGroup) -> None:
        """Remove the stale entry at the front."""
        entries = self.by_shape[entry.shape]
        entries.popleft()
        self.entry_count -= 1
        self._advance(group, entries[0] if entries else None)
        if not entries:
            del self.by_shape[entry.shape], self.groups[entry.shape]

    def _advance(self, group: BlockedGroup, after: Waiting | None = None) -> None:
        """Replace the entry at the front by `after`, of the same shape, or by the next one of its
        group.
        """
        if after is not None:
            heapreplace(group.firsts, after)
        else:
            heappop(group.firsts)
        heap = self._heap(group)
        if group.firsts:
            heapreplace(heap, group.firsts[0])
        else:
            heappop(heap)

    def park(self, group: BlockedGroup, owner: Owner, place: int) -> None:
        """Park the group at the front, which lacks room in this place of its need."""
        first = heappop(self.front)
        group.is_parked = True
        heappush(self.parked_front, first)
        self.parked.setdefault(owner, Parked()).park(group, place)

    def wake(self, room_of: Callable[[Owner], Room]) -> None:
        """Let the parked groups for which there is room be examined again."""
        for owner, parked in list(self.parked.items()):
            for group in parked.wake(room_of(owner)):
                group.is_parked = False
                if group.firsts:
                    heappush(self.front, group.firsts[0])
            if not parked:
                del self.parked[owner]

    def reopen(self) -> None:
        """Let impossible shapes be checked again, because nodes were added, removed or rebuilt."""
        self.unchecked = list(self.never.firsts)

    def recheck(self, is_possible: Callable[[Waiting], bool], most: int) -> tuple[int, bool]:
        """Check at most so many impossible shapes again, in order.

        Return how many were checked, and whether some are possible now.
        """
        assert not self.is_scanned, f"{self.lane_id} changes during a scan"
        checked, found = 0, set[Shape]()
        while self.unchecked and checked < most:
            entry = heappop(self.unchecked)
            checked += 1
            if self.groups.get(entry.shape) is self.never and is_possible(entry):
                found.add(entry.shape)
        if found:
            self._leave_never(found)
        return checked, bool(found)

    def _leave_never(self, shapes: Collection[Shape]) -> None:
        """Move shapes that are possible now into their groups."""
        firsts, self.never.firsts = self.never.firsts, []
        for entry in firsts:
            if entry.shape in shapes:
                group = self.groups[entry.shape] = self._group_of(entry.shape)
                self._push(group, entry)
            else:
                self.never.firsts.append(entry)
        heapify(self.never.firsts)
        if self.never.firsts:
            heappush(self.front, self.never.firsts[0])

    def regroup(self) -> None:
        """Remove all stale entries, and group all shapes anew: `card_bytes` may have changed."""
        for shape, entries in list(self.by_shape.items()):
            left = deque([entry for entry in entries if self.waiting.get(entry.job_id) is entry])
            if left:
                self.by_shape[shape] = left
            else:
                del self.by_shape[shape], self.groups[shape]
        self.entry_count = self.alive
        never, self.never, self.by_need, self.parked = self.never, BlockedGroup(), {}, {}
        for shape, entries in self.by_shape.items():
            group = self.never if self.groups[shape] is never else self._group_of(shape)
            self.groups[shape] = group
            heappush(group.firsts, entries[0])
        self._rebuild_fronts()

    def _shorten(self) -> None:
        """Build the fronts anew when they have many stale entries."""
        most = SPARE + 2 * len(self.by_shape)
        if len(self.front) > most or len(self.parked_front) > most:
            self._rebuild_fronts()

    def _rebuild_fronts(self) -> None:
        """Build the fronts from the first entry of each group."""
        self.front, self.parked_front = [], []
        for group in dict.fromkeys(self.groups.values()):
            self._heap(group).append(group.firsts[0])
        heapify(self.front)
        heapify(self.parked_front)


class _Allowed:
    """The check of one scan: whether the entry at the front may be tried.

    If not, its group is parked, or left out until the scan ends. Each group is checked once.
    """

    def __init__(
        self,
        lane: Lane,
        checks: Checks,
        allowed: set[BlockedGroup],
        left_out: dict[BlockedGroup, None],
    ) -> None:
        self.lane = lane
        self.checks = checks
        self.allowed = allowed
        self.left_out = left_out
        self.rooms: dict[Owner, Room] = {}
        if lane.parked:
            lane.wake(self._room_of)

    def __call__(self, group: BlockedGroup, entry: Waiting) -> bool:
        if group is self.lane.never or entry.shape.tenant in self.checks.full:
            self.left_out[group] = None
            heappop(self.lane.front)
            return False
        if group in self.allowed:
            return True
        owner = entry.shape.owner
        blocked_by = self._room_of(owner).blocked_by(group.need)
        if blocked_by != FREE:
            self.lane.park(group, owner, blocked_by)
            return False
        self.allowed.add(group)
        return True

    def _room_of(self, owner: Owner) -> Room:
        found = self.rooms.get(owner)
        if found is None:
            found = self.rooms[owner] = self.checks.room_of(owner)
        return found
