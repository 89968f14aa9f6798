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
from typing import Final

from libs.common.model import JobId, TenantId
from services.scheduler.placement.changes import UNSEEN
from services.scheduler.queueing.parking import EVERY_ROOM, FREE, Need, Parked, Room
from services.scheduler.queueing.shape import NO_OWNER, LaneId, Owner, Shape, Waiting

# Stale entries are removed when there are this many more of them than of live ones.
SPARE: Final = 1_000


class BlockedGroup:
    """The shapes of one owner with one need, or those that the cluster could never hold.

    `firsts` is a heap with the first entry of each shape. `front` is the heap of the lane that
    contains the first of them: `Lane.front`, or `Lane.parked_front` while the group is parked.
    """

    __slots__ = ("firsts", "front", "need", "owner")

    def __init__(
        self,
        front: list[Waiting],
        owner: Owner = NO_OWNER,
        need: Need = Need(0),  # noqa: B008  immutable
    ) -> None:
        self.firsts: list[Waiting] = []
        self.front = front
        self.owner = owner
        self.need = need


class ShapeEntries:
    """The entries of one shape, in order, and their group.

    With the nodes as they were at position `checked` of `Capacity.builds`, the cluster could hold
    them.
    """

    __slots__ = ("checked", "entries", "group")

    def __init__(self, group: BlockedGroup) -> None:
        self.entries: deque[Waiting] = deque()
        self.group = group
        self.checked = UNSEEN


class Lane:
    """The waiting jobs of one queue, or of one tenant in it.

    `shapes` holds the entries of each shape, and `by_need` finds the group of a new shape. `never`
    are the shapes that this cluster could never hold, and `unchecked` those of them to check again,
    as a heap. `card_bytes` is the memory of the cluster's largest card, and `built` the position in
    `Capacity.builds` for which a shape must be checked.

    `front` is a heap that contains the first entry of every group that is not parked, and perhaps
    stale entries; `parked_front` the same of parked groups. Of `entry_count` entries, `alive` are
    live. `named` counts the live ones by the reservation that they name.
    """

    def __init__(
        self,
        waiting: dict[JobId, Waiting],
        lane_id: LaneId,
        card_bytes: int = 0,
        built: int = 0,
    ) -> None:
        self.waiting = waiting
        self.lane_id = lane_id
        self.card_bytes = card_bytes
        self.built = built
        self.shapes: dict[Shape, ShapeEntries] = {}
        self.by_need: dict[tuple[Owner, Need], BlockedGroup] = {}
        self.front: Final[list[Waiting]] = []
        self.parked_front: Final[list[Waiting]] = []
        self.never = BlockedGroup(self.front)
        self.unchecked: list[Waiting] = []
        self.parked: dict[Owner, Parked[BlockedGroup]] = {}
        self.entry_count = 0
        self.alive = 0
        self.named: dict[str, int] = {}
        self.is_scanned = False

    def add(self, entry: Waiting) -> None:
        """Add the entry of a job.

        No scan of the lane may be open, because a scan takes entries out until it ends.
        """
        assert not self.is_scanned, f"{self.lane_id} changes during a scan"
        of_shape = self.shapes.get(entry.shape)
        if of_shape is None:
            of_shape = self.shapes[entry.shape] = ShapeEntries(self._group_of(entry.shape))
        entries, group = of_shape.entries, of_shape.group
        insort(entries, entry)
        self.entry_count += 1
        self.alive += 1
        if name := entry.shape.reserved[0]:
            self.named[name] = self.named.get(name, 0) + 1
        if entries[0] is entry:
            if len(entries) > 1:
                group.firsts.remove(entries[1])
                heapify(group.firsts)
            self._push(group, entry)
        if self.entry_count > SPARE + 2 * self.alive or len(self.by_need) > SPARE + len(
            self.shapes
        ):
            self.regroup()
        else:
            self._shorten()

    def leave(self, entry: Waiting) -> None:
        """Count an entry as stale."""
        self.alive -= 1
        if name := entry.shape.reserved[0]:
            self.named[name] -= 1
            if not self.named[name]:
                del self.named[name]

    def _group_of(self, shape: Shape) -> BlockedGroup:
        """Return the group of a shape that the cluster could hold."""
        key = (shape.owner, shape.need(self.card_bytes))
        found = self.by_need.get(key)
        if found is None:
            found = self.by_need[key] = BlockedGroup(self.front, *key)
        return found

    def _push(self, group: BlockedGroup, first: Waiting) -> None:
        """Add the first entry of a shape to its group."""
        heappush(group.firsts, first)
        if group.firsts[0] is first:
            heappush(group.front, first)

    def heads(self) -> Iterator[Waiting]:
        """Yield the first waiting job of each shape, in order and lazily.

        At most one scan of a lane may be open at a time. It takes entries out of the heaps and puts
        them back when it ends. A second one would silently miss them, so it raises AssertionError.
        """
        assert not self.is_scanned, f"two scans of {self.lane_id} are open at a time"
        scanned: list[Waiting] = []
        self.is_scanned = True
        try:
            while (of_shape := self._next_of_all()) is not None:
                yield of_shape.entries[0]
                scanned.append(of_shape.entries[0])
                self._advance(of_shape.group)
        finally:
            self.is_scanned = False
            if scanned:
                self._restore(scanned, {})

    def candidates(
        self,
        room_of: Callable[[Owner], Room],
        is_possible: Callable[[Waiting], bool],
        full: Collection[TenantId] = (),
        tried: Collection[tuple[str, Owner]] = (),
    ) -> Iterator[Waiting]:
        """Yield the same jobs without the groups that a limit blocks, without impossible shapes,
        and without those of `full` tenants and `tried` owners, of which enough jobs were examined
        in this pass.

        `room_of` returns what the limits of an owner leave. A group that is blocked is parked.
        `is_possible` tells whether the cluster could hold a job at all. Impossible shapes are
        remembered until `reopen`.
        """
        assert not self.is_scanned, f"two scans of {self.lane_id} are open at a time"
        scanned: list[Waiting] = []
        left_out: dict[BlockedGroup, None] = {}
        rooms: dict[Owner, Room] = {}
        queue = self.lane_id.queue
        self.is_scanned = True
        try:
            if self.parked:
                self._wake(room_of, rooms)
            while (of_shape := self._next(self.front)) is not None:
                group = of_shape.group
                if (
                    group is self.never
                    or (full and group.owner.tenant in full)
                    or (tried and (queue, group.owner.by_reservation) in tried)
                ):
                    left_out[group] = None
                    heappop(self.front)
                    continue
                room = rooms.get(group.owner)
                if room is None:
                    room = rooms[group.owner] = room_of(group.owner)
                if room is not EVERY_ROOM and (blocked_by := room.blocked_by(group.need)) != FREE:
                    self._park(group, blocked_by)
                    continue
                entry = of_shape.entries[0]
                if of_shape.checked != self.built and not is_possible(entry):
                    of_shape.group = self.never
                else:
                    of_shape.checked = self.built
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
            group = self.shapes[entry.shape].group
            heappush(group.firsts, entry)
            left_out[group] = None
        for group in left_out:
            heappush(group.front, group.firsts[0])
        self._shorten()

    def _next_of_all(self) -> ShapeEntries | None:
        """Return the shape whose first entry is next, of all groups; None if all were scanned."""
        open_one, parked_one = self._next(self.front), self._next(self.parked_front)
        if open_one is None or parked_one is None:
            return open_one or parked_one
        return open_one if open_one.entries[0] < parked_one.entries[0] else parked_one

    def _next(self, front: list[Waiting]) -> ShapeEntries | None:
        """Drop stale entries, and return the shape of the first live one in this front."""
        shapes = self.shapes
        waiting = self.waiting
        while front:
            entry = front[0]
            of_shape = shapes.get(entry.shape)
            if (
                of_shape is None
                or not (firsts := of_shape.group.firsts)
                or firsts[0] is not entry
                or of_shape.group.front is not front
            ):
                heappop(front)
            elif waiting.get(entry.job_id) is entry:
                return of_shape
            else:
                self._drop_stale(of_shape)
        return None

    def _drop_stale(self, of_shape: ShapeEntries) -> None:
        """Remove the stale entry at the front."""
        entries = of_shape.entries
        group = of_shape.group
        stale = entries.popleft()
        self.entry_count -= 1
        if entries:
            heapreplace(group.firsts, entries[0])
            heapreplace(group.front, group.firsts[0])
        else:
            del self.shapes[stale.shape]
            self._advance(group)

    def _advance(self, group: BlockedGroup) -> None:
        """Replace the entry at the front by the next one of its group."""
        heappop(group.firsts)
        if group.firsts:
            heapreplace(group.front, group.firsts[0])
        else:
            heappop(group.front)

    def _park(self, group: BlockedGroup, place: int) -> None:
        """Park the group at the front, which lacks room in this place of its need."""
        first = heappop(self.front)
        group.front = self.parked_front
        heappush(group.front, first)
        self.parked.setdefault(group.owner, Parked()).park(group, place)

    def _wake(self, room_of: Callable[[Owner], Room], rooms: dict[Owner, Room]) -> None:
        """Let the parked groups for which there is room be examined again."""
        for owner, parked in list(self.parked.items()):
            rooms[owner] = room_of(owner)
            for group in parked.wake(rooms[owner]):
                group.front = self.front
                if group.firsts:
                    heappush(self.front, group.firsts[0])
            if not parked:
                del self.parked[owner]

    def reopen(self, built: int) -> None:
        """Let all shapes be checked again, because nodes were added, removed or rebuilt: possible
        ones when they are next, impossible ones by `recheck`.
        """
        self.built = built
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
            of_shape = self.shapes.get(entry.shape)
            if of_shape is not None and of_shape.group is self.never and is_possible(entry):
                found.add(entry.shape)
        if found:
            self._leave_never(found)
        return checked, bool(found)

    def _leave_never(self, shapes: Collection[Shape]) -> None:
        """Move shapes that are possible now into their groups."""
        firsts, self.never.firsts = self.never.firsts, []
        for entry in firsts:
            if entry.shape in shapes:
                group = self.shapes[entry.shape].group = self._group_of(entry.shape)
                self._push(group, entry)
            else:
                self.never.firsts.append(entry)
        heapify(self.never.firsts)
        if self.never.firsts:
            heappush(self.front, self.never.firsts[0])

    def regroup(self) -> None:
        """Remove all stale entries, and group all shapes anew: `card_bytes` may have changed."""
        never, self.never = self.never, BlockedGroup(self.front)
        self.by_need, self.parked = {}, {}
        for shape, of_shape in list(self.shapes.items()):
            left = [entry for entry in of_shape.entries if self.waiting.get(entry.job_id) is entry]
            if not left:
                del self.shapes[shape]
                continue
            of_shape.entries = deque(left)
            of_shape.group = self.never if of_shape.group is never else self._group_of(shape)
            heappush(of_shape.group.firsts, left[0])
        self.entry_count = self.alive
        self._rebuild_fronts()

    def _shorten(self) -> None:
        """Build the fronts anew when they have many stale entries."""
        most = SPARE + 2 * len(self.shapes)
        if len(self.front) > most or len(self.parked_front) > most:
            self._rebuild_fronts()

    def _rebuild_fronts(self) -> None:
        """Build the fronts from the first entry of each group."""
        self.front.clear()
        self.parked_front.clear()
        for group in dict.fromkeys([of_shape.group for of_shape in self.shapes.values()]):
            group.front.append(group.firsts[0])
        heapify(self.front)
        heapify(self.parked_front)
