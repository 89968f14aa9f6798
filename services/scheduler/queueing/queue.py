"""The queue: jobs that wait for a placement, in lanes that are sorted within themselves; in a lane
those of equal shape together, and those shapes of which the limits ask the same.

Pure. A shape that does not fit is asked once per change, not once per job, and of a tenant that may
have no more nothing but that is asked, however many shapes it has. Removal is lazy: an entry whose
job is not waiting under that very key any more is dropped when it comes to the head, or when there
are many such. Which lane goes first is asked anew each time (`queue_order.py`): there are few.
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

# What waits no more, and what stands in front in vain, is let go of when there is so much more of
# it than of what waits.
SPARE: Final = 1_000


class Shape(msgspec.Struct, frozen=True, order=True, cache_hash=True):
    """What makes two jobs equal for placement.

    `lasts` are the bits of their time limits: a short one may begin where a long one may not
    (`backfill.py`); `reserved` are the reservation that they name and their user, if they name one;
    `held_s` is how long an allocation lasts.
    """

    tenant: TenantId
    request: ResourceRequest
    lasts: int = 0
    reserved: tuple[str, str] = ("", "")
    held_s: int = 0

    @property
    def limit_key(self) -> "LimitKey":
        return LimitKey(self.tenant, self.request.least_share, self.reserved)

    def on(self, nodes: int) -> "Shape":
        """With so many nodes."""
        same = nodes == self.request.nodes
        return (
            self
            if same
            else msgspec.structs.replace(
                self, request=msgspec.structs.replace(self.request, nodes=nodes)
            )
        )


class LimitKey(NamedTuple):
    """Of a shape what says whether its jobs let others pass (`limits.lets_pass`): all with the same
    do, or none.
    """

    tenant: TenantId
    least_share: int
    reserved: tuple[str, str]


class LaneId(NamedTuple):
    """The queue that a job named, and its tenant where that queue's policy compares tenants."""

    queue: str
    tenant: str


class Waiting(NamedTuple):
    """One entry of a queue.

    It is the job's own as long as the queue names this very one, even where it equals another.
    """

    key: OrderKey
    job_id: JobId
    shape: Shape
    lane: LaneId


def shape_of(job: Job, excluded: tuple[NodeId, ...] = ()) -> Shape:
    """`excluded` are the nodes that refused the job lately."""
    reserved = (job.spec.reservation, job.user) if job.spec.reservation else ("", "")
    held_s = job.spec.allocation.expires_s if job.spec.allocation is not None else 0
    return Shape(
        job.tenant,
        request_of(job.spec, excluded),
        job.spec.time_limit_s.bit_length(),
        reserved,
        held_s,
    )


class Ask(NamedTuple):
    """What is asked of a job that waits: whether all behind its gate let others pass, and whether
    the cluster as it is could hold it.
    """

    lets_pass: Callable[[Waiting], bool]
    is_possible: Callable[[Waiting], bool]


class BlockedGroup:
    """Behind it stand the shapes with one claim, or those that can never fit: `firsts` is the heap
    of the first entry of each.
    """

    __slots__ = ("firsts",)

    def __init__(self) -> None:
        self.firsts: list[Waiting] = []


class Lane:
    """`lines` are the entries of each shape, in order; `gates` are by shape, `by_claim` says behind
    which one a new shape stands; what can never fit the cluster as it is stands behind `never`.

    In `front` are the first one of every gate, and some that are that no more. Of all `entries`
    those of `alive` jobs wait.
    """

    def __init__(self, waiting: dict[JobId, Waiting], lane_id: LaneId) -> None:
        self.waiting = waiting
        self.lane_id = lane_id
        self.lines: dict[Shape, deque[Waiting]] = {}
        self.groups: dict[Shape, BlockedGroup] = {}
        self.by_limit_key: dict[LimitKey, BlockedGroup] = {}
        self.never = BlockedGroup()
        self.front: list[Waiting] = []
        self.entries = 0
        self.alive = 0

    def add(self, entry: Waiting) -> None:
        line = self.lines.get(entry.shape)
        if line is None:
            line = self.lines[entry.shape] = deque()
            self.groups[entry.shape] = self.by_limit_key.setdefault(
                entry.shape.limit_key, BlockedGroup()
            )
        insort(line, entry)
        self.entries += 1
        self.alive += 1
        if line[0] is entry:
            firsts = self.groups[entry.shape].firsts
            if len(line) > 1:
                firsts.remove(line[1])
                heapify(firsts)
            heappush(firsts, entry)
            if firsts[0] is entry:
                heappush(self.front, entry)
        if self.entries > SPARE + 2 * self.alive or len(self.by_limit_key) > SPARE + len(
            self.lines
        ):
            self._tidy()
        elif len(self.front) > SPARE + 2 * len(self.lines):
            self._draw_up()

    def heads(self) -> Iterator[Waiting]:
        """The first waiting job of each shape, in order; only as many are looked for as are asked
        for.
        """
        return self._walk(None)

    def candidates(self, ask: Ask) -> Iterator[Waiting]:
        """The same without those behind a gate that lets others pass, which is asked once, and
        without what this cluster could never hold, which is remembered until `reopen`.
        """
        return self._walk(ask)

    def _walk(self, ask: Ask | None) -> Iterator[Waiting]:
        passed: list[Waiting] = []
        opened: set[BlockedGroup] = set()
        closed: dict[BlockedGroup, None] = {}
        try:
            while self._settle():
                entry = self.front[0]
                group = self.groups[entry.shape]
                if ask is not None and group not in opened:
                    if group in closed or group is self.never or ask.lets_pass(entry):
                        closed[group] = None
                        heappop(self.front)
                        continue
                    opened.add(group)
                if ask is not None and not ask.is_possible(entry):
                    self.groups[entry.shape] = self.never
                else:
                    yield entry
                passed.append(entry)
                self._go_on(group)
        finally:
            if passed or closed:
                self._put_back(passed, closed)

    def _put_back(self, passed: list[Waiting], closed: dict[BlockedGroup, None]) -> None:
        """What a walk has taken away."""
        for entry in passed:
            group = self.groups[entry.shape]
            heappush(group.firsts, entry)
            closed[group] = None
        for group in closed:
            heappush(self.front, group.firsts[0])
        if len(self.front) > SPARE + 2 * len(self.lines):
            self._draw_up()

    def _settle(self) -> bool:
        """Whether a job waits that was not passed; then the first one stands in front."""
        while self.front:
            entry = self.front[0]
            group = self.groups.get(entry.shape)
            if group is None or not group.firsts or group.firsts[0] is not entry:
                heappop(self.front)
            elif self.waiting.get(entry.job_id) is entry:
                return True
            else:
                self._drop(entry, group)
        return False

    def _drop(self, entry: Waiting, group: BlockedGroup) -> None:
        """The first in front waits no more."""
        line = self.lines[entry.shape]
        line.popleft()
        self.entries -= 1
        self._go_on(group, line[0] if line else None)
        if not line:
            del self.lines[entry.shape], self.groups[entry.shape]

    def _go_on(self, group: BlockedGroup, after: Waiting | None = None) -> None:
        """The first in front makes way for `after`, of its shape, and for the next one behind its
        gate.
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
        """What could never be held may be possible now: the cluster is built otherwise."""
        asked, self.never.firsts = self.never.firsts, []
        for entry in asked:
            group = (
                self.by_limit_key.setdefault(entry.shape.limit_key, BlockedGroup())
                if is_possible(entry)
                else self.never
            )
            self.groups[entry.shape] = group
            heappush(group.firsts, entry)
        if asked:
            self._draw_up()

    def _tidy(self) -> None:
        """Let go of all that waits no more."""
        for shape, line in list(self.lines.items()):
            left = deque([entry for entry in line if self.waiting.get(entry.job_id) is entry])
            if left:
                self.lines[shape] = left
            else:
                del self.lines[shape], self.groups[shape]
        self.entries = self.alive
        never, self.never, self.by_limit_key = self.never, BlockedGroup(), {}
        for shape, line in self.lines.items():
            group = (
                self.never
                if self.groups[shape] is never
                else self.by_limit_key.setdefault(shape.limit_key, BlockedGroup())
            )
            self.groups[shape] = group
            heappush(group.firsts, line[0])
        self._draw_up()

    def _draw_up(self) -> None:
        self.front = [group.firsts[0] for group in dict.fromkeys(self.groups.values())]
        heapify(self.front)


class Queue:
    """`version` grows when a job comes, goes or is given another key."""

    def __init__(self) -> None:
        self.waiting: dict[JobId, Waiting] = {}
        self.lanes: dict[LaneId, Lane] = {}
        self.version = 0
        # The cluster as it was built when somebody last asked (`Capacity.builds`).
        self.built = 0

    def shape(self, job: Job) -> Shape:
        """Return the key by which jobs are equal for placement. It is known for a waiting job."""
        waiting = self.waiting.get(job.job_id)
        return waiting.shape if waiting is not None else shape_of(job)

    def request(self, job: Job) -> ResourceRequest:
        """Return the job's resource request."""
        waiting = self.waiting.get(job.job_id)
        return waiting.shape.request if waiting is not None else request_of(job.spec)

    def add(
        self, job: Job, key: OrderKey, lane_id: LaneId, excluded: tuple[NodeId, ...] = ()
    ) -> None:
        """The job waits there from now on, wherever it waited before; not for the
        `excluded` nodes.
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
        self._leave(known)
        self.waiting[job.job_id] = entry
        lane = self.lanes.get(lane_id)
        if lane is None:
            lane = self.lanes[lane_id] = Lane(self.waiting, lane_id)
        lane.add(entry)
        self.version += 1

    def remove(self, job_id: JobId) -> None:
        known = self.waiting.pop(job_id, None)
        if known is not None:
            self._leave(known)
            self.version += 1

    def take_out(self, name: str = "") -> list[JobId]:
        """All that waits in the queue of this name, or in any: their lanes begin anew."""
        found = [
            job_id for job_id, waiting in self.waiting.items() if name in ("", waiting.lane.queue)
        ]
        for job_id in found:
            self.remove(job_id)
        return found

    def _leave(self, entry: Waiting | None) -> None:
        """A lane in which nobody waits any more is forgotten."""
        if entry is not None:
            lane = self.lanes[entry.lane]
            lane.alive -= 1
            if not lane.alive:
                del self.lanes[entry.lane]

    def reopen(self, built: int, is_possible: Callable[[Waiting], bool]) -> None:
        """The cluster is built otherwise."""
        self.built = built
        for lane in self.lanes.values():
            lane.reopen(is_possible)
