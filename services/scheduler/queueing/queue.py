"""The queue: jobs that wait for a placement, in sorted lanes.

Pure. In a lane, jobs of equal shape stand together, and shapes that wait for the same limit form
one blocked group. A shape that does not fit is therefore tried once per change, not once per job.
For a tenant at its limit, only the limit is checked, however many shapes the tenant has.

Removal is lazy: a stale entry is dropped when it comes to the head, or when there are many of them.
`queue_order.py` sorts the lanes at each scheduling pass, because there are few.
"""

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final, NamedTuple

import msgspec

from libs.common.model import JobId, NodeId, TenantId
from libs.common.state.cluster import Job
from services.scheduler.placement.resource_request import ResourceRequest, request_of
from services.scheduler.policies import OrderKey

# Stale entries are removed when there are this many more of them than of live ones.
SPARE: Final = 1_000


class Shape(msgspec.Struct, frozen=True, order=True, cache_hash=True):
    """The key by which two jobs are equal for placement.

    `lasts` is the bit length of the time limit in seconds, because a short job may be backfilled
    where a long one may not (`backfill.py`). `reserved` is the named reservation and the user, or
    two empty strings. `held_s` is the duration of an allocation.
    """

    tenant: TenantId
    request: ResourceRequest
    lasts: int = 0
    reserved: tuple[str, str] = ("", "")
    held_s: int = 0

    @property
    def limit_key(self) -> "LimitKey":
        request = self.request
        pools = request.nodes * request.pools
        return LimitKey(self.tenant, request.least_share, self.reserved, pools)

    def on(self, nodes: int) -> "Shape":
        """Return the same shape with this number of nodes."""
        same = nodes == self.request.nodes
        return (
            self
            if same
            else msgspec.structs.replace(
                self, request=msgspec.structs.replace(self.request, nodes=nodes)
            )
        )


class LimitKey(NamedTuple):
    """The part of a shape that decides whether a limit blocks its jobs (`limits.is_group_blocked`).

    It blocks all shapes with the same key, or none of them.
    """

    tenant: TenantId
    least_share: int
    reserved: tuple[str, str]
    pools: int = 0


class LaneId(NamedTuple):
    """The name of a queue, and the tenant where the policy of that queue compares tenants."""

    queue: str
    tenant: str


class Waiting(NamedTuple):
    """One entry of a lane.

    An entry is live while `Queue.waiting` holds this very object for its job, not merely an equal
    one.
    """

    key: OrderKey
    job_id: JobId
    shape: Shape
    lane: LaneId


def shape_of(job: Job, excluded: tuple[NodeId, ...] = ()) -> Shape:
    """Return the job's shape. `excluded` are the nodes that refused the job lately."""
    reserved = (job.spec.reservation, job.user) if job.spec.reservation else ("", "")
    held_s = job.spec.allocation.expires_s if job.spec.allocation is not None else 0
    return Shape(
        tenant=job.tenant,
        request=request_of(job.spec, excluded),
        lasts=job.spec.time_limit_s.bit_length(),
        reserved=reserved,
        held_s=held_s,
    )


class Checks(NamedTuple):
    """The two checks on a waiting job: whether a limit blocks its whole group, and whether the
    cluster could hold the job at all.
    """

    is_group_blocked: Callable[[Waiting], bool]
    is_possible: Callable[[Waiting], bool]


class BlockedGroup:
    """The shapes that share one limit key, or those that the cluster could never hold.

    `firsts` is a heap with the first entry of each shape.
    """

    __slots__ = ("firsts",)

    def __init__(self) -> None:
        self.firsts: list[Waiting] = []


class Lane:
    """The waiting jobs of one queue, or of one tenant in it.

    `by_shape` holds the entries of each shape, in order. `groups` maps a shape to its group, and
    `by_limit_key` finds the group of a new shape. Shapes that this cluster could never hold are in
    the group `never`.

    `front` is a heap that contains the first entry of every group, and perhaps stale entries. Of
    `entry_count` entries, `alive` are live.
    """

    def __init__(self, waiting: dict[JobId, Waiting], lane_id: LaneId) -> None:
        self.waiting = waiting
        self.lane_id = lane_id
        self.by_shape: dict[Shape, deque[Waiting]] = {}
        self.groups: dict[Shape, BlockedGroup] = {}
        self.by_limit_key: dict[LimitKey, BlockedGroup] = {}
        self.never = BlockedGroup()
        self.front: list[Waiting] = []
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
            self.groups[entry.shape] = self.by_limit_key.setdefault(
                entry.shape.limit_key, BlockedGroup()
            )
        insort(entries, entry)
        self.entry_count += 1
        self.alive += 1
        if entries[0] is entry:
            firsts = self.groups[entry.shape].firsts
            if len(entries) > 1:
                firsts.remove(entries[1])
                heapify(firsts)
            heappush(firsts, entry)
            if firsts[0] is entry:
                heappush(self.front, entry)
        if self.entry_count > SPARE + 2 * self.alive or len(self.by_limit_key) > SPARE + len(
            self.by_shape
        ):
            self._tidy()
        elif len(self.front) > SPARE + 2 * len(self.by_shape):
            self._rebuild_front()

    def heads(self) -> Iterator[Waiting]:
        """Yield the first waiting job of each shape, in order and lazily."""
        return self._scan(None)

    def candidates(self, checks: Checks) -> Iterator[Waiting]:
        """Yield the same jobs without the groups that a limit blocks and without impossible shapes.

        Each group is checked once. Impossible shapes are remembered until `reopen`.
        """
        return self._scan(checks)

    def _scan(self, checks: Checks | None) -> Iterator[Waiting]:
        """Yield entries in order. At most one scan of a lane may be open at a time.

        The scan takes entries out of the heaps and puts them back when it ends. A second one would
        silently miss them, so it raises AssertionError.
        """
        assert not self.is_scanned, f"two scans of {self.lane_id} are open at a time"
        scanned: list[Waiting] = []
        allowed: set[BlockedGroup] = set()
        blocked: dict[BlockedGroup, None] = {}
        self.is_scanned = True
        try:
            while (entry := self._next()) is not None:
                group = self.groups[entry.shape]
                if checks is not None and group not in allowed:
                    if group in blocked or group is self.never or checks.is_group_blocked(entry):
                        blocked[group] = None
                        heappop(self.front)
                        continue
                    allowed.add(group)
                if checks is not None and not checks.is_possible(entry):
                    self.groups[entry.shape] = self.never
                else:
                    yield entry
                scanned.append(entry)
                self._advance(group)
        finally:
            self.is_scanned = False
            if scanned or blocked:
                self._restore(scanned, blocked)

    def _restore(self, scanned: list[Waiting], blocked: dict[BlockedGroup, None]) -> None:
        """Put back the entries and groups that a scan took out."""
        for entry in scanned:
            group = self.groups[entry.shape]
            heappush(group.firsts, entry)
            blocked[group] = None
        for group in blocked:
            heappush(self.front, group.firsts[0])
        if len(self.front) > SPARE + 2 * len(self.by_shape):
            self._rebuild_front()

    def _next(self) -> Waiting | None:
        """Drop stale entries, and return the entry at the front; None if all were scanned."""
        while self.front:
            entry = self.front[0]
            group = self.groups.get(entry.shape)
            if group is None or not group.firsts or group.firsts[0] is not entry:
                heappop(self.front)
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
        if group.firsts:
            heapreplace(self.front, group.firsts[0])
        else:
            heappop(self.front)

    def reopen(self, is_possible: Callable[[Waiting], bool]) -> None:
        """Check impossible shapes again, because nodes were added, removed or rebuilt."""
        assert not self.is_scanned, f"{self.lane_id} changes during a scan"
        unchecked, self.never.firsts = self.never.firsts, []
        for entry in unchecked:
            group = (
                self.by_limit_key.setdefault(entry.shape.limit_key, BlockedGroup())
                if is_possible(entry)
                else self.never
            )
            self.groups[entry.shape] = group
            heappush(group.firsts, entry)
        if unchecked:
            self._rebuild_front()

    def _tidy(self) -> None:
        """Remove all stale entries."""
        for shape, entries in list(self.by_shape.items()):
            left = deque([entry for entry in entries if self.waiting.get(entry.job_id) is entry])
            if left:
                self.by_shape[shape] = left
            else:
                del self.by_shape[shape], self.groups[shape]
        self.entry_count = self.alive
        never, self.never, self.by_limit_key = self.never, BlockedGroup(), {}
        for shape, entries in self.by_shape.items():
            group = (
                self.never
                if self.groups[shape] is never
                else self.by_limit_key.setdefault(shape.limit_key, BlockedGroup())
            )
            self.groups[shape] = group
            heappush(group.firsts, entries[0])
        self._rebuild_front()

    def _rebuild_front(self) -> None:
        """Build `front` from the first entry of each group."""
        self.front = [group.firsts[0] for group in dict.fromkeys(self.groups.values())]
        heapify(self.front)


class Queue:
    """All waiting jobs. `version` grows when a job is added, is removed or changes its key."""

    def __init__(self) -> None:
        self.waiting: dict[JobId, Waiting] = {}
        self.lanes: dict[LaneId, Lane] = {}
        self.version = 0
        # The position in `Capacity.builds` at the last check of impossible shapes.
        self.built = 0

    def shape(self, job: Job) -> Shape:
        """Return the job's shape, which is cached for a waiting job."""
        waiting = self.waiting.get(job.job_id)
        return waiting.shape if waiting is not None else shape_of(job)

    def request(self, job: Job) -> ResourceRequest:
        """Return the job's resource request."""
        waiting = self.waiting.get(job.job_id)
        return waiting.shape.request if waiting is not None else request_of(job.spec)

    def add(
        self, job: Job, key: OrderKey, lane_id: LaneId, excluded: tuple[NodeId, ...] = ()
    ) -> None:
        """Add the job to this lane and remove it from its former one. It avoids the `excluded`
        nodes.
        """
        known = self.waiting.get(job.job_id)
        same = (
            known is not None
            and known.shape.lasts == job.spec.time_limit_s.bit_length()
            and known.shape.request.excluded == excluded
        )
        shape = known.shape if known is not None and same else shape_of(job, excluded)
        entry = Waiting(key, job.job_id, shape, lane_id)
        if entry == known:
            return
        self._leave_lane(known)
        self.waiting[job.job_id] = entry
        lane = self.lanes.get(lane_id)
        if lane is None:
            lane = self.lanes[lane_id] = Lane(self.waiting, lane_id)
        lane.add(entry)
        self.version += 1

    def remove(self, job_id: JobId) -> None:
        """Remove the job, if it waits."""
        known = self.waiting.pop(job_id, None)
        if known is not None:
            self._leave_lane(known)
            self.version += 1

    def take_out(self, name: str = "") -> list[JobId]:
        """Remove all jobs of the queue with this name, or of all queues, and return their ids."""
        job_ids = [
            job_id for job_id, waiting in self.waiting.items() if name in ("", waiting.lane.queue)
        ]
        for job_id in job_ids:
            self.remove(job_id)
        return job_ids

    def _leave_lane(self, entry: Waiting | None) -> None:
        """Count the entry as stale, and delete its lane when no live entry is left."""
        if entry is not None:
            lane = self.lanes[entry.lane]
            lane.alive -= 1
            if not lane.alive:
                del self.lanes[entry.lane]

    def reopen(self, built: int, is_possible: Callable[[Waiting], bool]) -> None:
        """Check impossible shapes of all lanes again. `built` is the position in
        `Capacity.builds`.
        """
        self.built = built
        for lane in self.lanes.values():
            lane.reopen(is_possible)
