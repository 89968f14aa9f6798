"""The queue: jobs that wait for a placement, in lanes that are sorted within themselves; in a lane those of equal shape together, and those
shapes of which the limits ask the same.

Pure. A shape that does not fit is asked once per change, not once per job, and of a tenant that may have no more nothing but that is asked,
however many shapes it has. Removal is lazy: an entry whose job is not waiting under that very key any more is dropped when it comes to the
head, or when there are many such. Which lane goes first is asked anew each time (`line.py`): there are few.
"""

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final, NamedTuple

import msgspec

from libs.common.cluster import Job
from libs.common.model import JobId, TenantId
from services.scheduler.placement.wish import Wish, wish_of
from services.scheduler.policies import OrderKey


class Gate(NamedTuple):
    """Of a shape what says whether its jobs let others pass (`limits.lets_pass`): all behind one gate do, or none. `share` and
    `devices` are over all nodes; what can never fit the cluster as it is stands behind a gate of its own.
    """

    tenant: TenantId
    share: int
    devices: int
    held_s: int
    reserved: tuple[str, str]


# A lane lets go of all that waits no more when it has so many more entries than twice the jobs that wait.
SPARE: Final = 1_000

NEVER: Final = Gate(TenantId(""), 0, 0, 0, ("", ""))


class Shape(msgspec.Struct, frozen=True, order=True, cache_hash=True):
    """What makes two jobs equal for placement. `lasts` are the bits of their time limits: a short one may begin where a long one may not
    (`backfill.py`); `reserved` are the reservation that they name and their user, if they name one; `held_s` is how long an allocation
    lasts.
    """

    tenant: TenantId
    wish: Wish
    lasts: int = 0
    reserved: tuple[str, str] = ("", "")
    held_s: int = 0

    @property
    def gate(self) -> Gate:
        wish = self.wish
        return Gate(self.tenant, wish.total_share, wish.nodes * wish.gpus, self.held_s, self.reserved)

    def on(self, nodes: int) -> "Shape":
        """With so many nodes."""
        same = nodes == self.wish.nodes
        return self if same else msgspec.structs.replace(self, wish=msgspec.structs.replace(self.wish, nodes=nodes))


class LaneId(NamedTuple):
    """The queue that a job named, and its tenant where that queue's policy compares tenants."""

    queue: str
    tenant: str


class Waiting(NamedTuple):
    """One entry of a queue. It is the job's own as long as the queue names this very one; the job id makes two of them differ."""

    key: OrderKey
    job_id: JobId
    shape: Shape
    lane: LaneId


def shape_of(job: Job) -> Shape:
    reserved = (job.spec.reservation, job.user) if job.spec.reservation else ("", "")
    held_s = job.spec.allocation.expires_s if job.spec.allocation is not None else 0
    return Shape(job.tenant, wish_of(job.spec), job.spec.time_limit_s.bit_length(), reserved, held_s)


class Ask(NamedTuple):
    """What is asked of a job that waits: whether it lets others pass, and whether the cluster as it is could hold it."""

    lets_pass: Callable[[Waiting], bool]
    is_possible: Callable[[Waiting], bool]


class Lane:
    """`lines` are the entries of each shape, in order; `shapes` holds the first one of each behind every gate, `front` the first one of
    every gate. `entries` counts those of all lines.
    """

    def __init__(self, waiting: dict[JobId, Waiting], lane_id: LaneId) -> None:
        self.waiting = waiting
        self.lane_id = lane_id
        self.lines: dict[Shape, deque[Waiting]] = {}
        self.gates: dict[Shape, Gate] = {}
        self.shapes: dict[Gate, list[Waiting]] = {}
        self.front: list[Waiting] = []
        self.entries = 0

    def add(self, entry: Waiting) -> None:
        line = self.lines.get(entry.shape)
        if line is None:
            line = self.lines[entry.shape] = deque()
            self.gates[entry.shape] = entry.shape.gate
        insort(line, entry)
        self.entries += 1
        if line[0] is entry:
            shapes = self.shapes.setdefault(self.gates[entry.shape], [])
            before = shapes[0] if shapes else None
            _replace(shapes, line[1] if len(line) > 1 else None, entry)
            if shapes[0] is entry:
                _replace(self.front, before, entry)

    def heads(self) -> Iterator[Waiting]:
        """The first waiting job of each shape, in order; only as many are looked for as are asked for."""
        return self._heads(None)

    def candidates(self, ask: Ask) -> Iterator[Waiting]:
        """The same without those behind a gate that lets others pass, which is asked once, and without what this cluster could never hold.
        That is remembered until `reopen`.
        """
        return self._heads(ask)

    def _heads(self, ask: Ask | None) -> Iterator[Waiting]:
        passed: list[Waiting] = []
        open_gates: set[Gate] = set()
        try:
            while self.settle():
                entry = self.front[0]
                gate = self.gates[entry.shape]
                if ask is not None and gate not in open_gates:
                    if gate is NEVER or ask.lets_pass(entry):
                        heappop(self.front)
                        continue
                    open_gates.add(gate)
                if ask is not None and not ask.is_possible(entry):
                    self.gates[entry.shape] = NEVER
                else:
                    yield entry
                passed.append(entry)
                self._go_on(gate)
        finally:
            for entry in passed:
                heappush(self.shapes.setdefault(self.gates[entry.shape], []), entry)
            if len(self.front) != len(self.shapes) or passed:
                self._draw_up()

    def settle(self) -> bool:
        """Whether a job waits that was not passed; then the first one stands in front."""
        while self.front:
            entry = self.front[0]
            if self.waiting.get(entry.job_id) is entry:
                return True
            line = self.lines[entry.shape]
            line.popleft()
            self.entries -= 1
            self._go_on(self.gates[entry.shape], line[0] if line else None)
            if not line:
                del self.lines[entry.shape], self.gates[entry.shape]
        return False

    def _go_on(self, gate: Gate, after: Waiting | None = None) -> None:
        """The first in front makes way for `after`, of its shape, and for the next one behind its gate."""
        shapes = self.shapes[gate]
        if after is not None:
            heapreplace(shapes, after)
        else:
            heappop(shapes)
        if shapes:
            heapreplace(self.front, shapes[0])
        else:
            heappop(self.front)
            del self.shapes[gate]

    def tidy(self) -> None:
        """Let go of all that waits no more."""
        for shape, line in list(self.lines.items()):
            left = deque([entry for entry in line if self.waiting.get(entry.job_id) is entry])
            if left:
                self.lines[shape] = left
            else:
                del self.lines[shape], self.gates[shape]
        self.entries = sum(map(len, self.lines.values()))
        self.shapes = {}
        for shape, line in self.lines.items():
            heappush(self.shapes.setdefault(self.gates[shape], []), line[0])
        self._draw_up()

    def reopen(self, is_possible: Callable[[Waiting], bool]) -> None:
        """What could never be held may be possible now: the cluster is built otherwise."""
        for entry in self.shapes.pop(NEVER, ()):
            gate = self.gates[entry.shape] = entry.shape.gate if is_possible(entry) else NEVER
            heappush(self.shapes.setdefault(gate, []), entry)
        self._draw_up()

    def _draw_up(self) -> None:
        self.front = [shapes[0] for shapes in self.shapes.values()]
        heapify(self.front)


def _replace(heap: list[Waiting], old: Waiting | None, new: Waiting) -> None:
    if old is not None:
        heap.remove(old)
        heapify(heap)
    heappush(heap, new)


class Queue:
    """`version` grows when a job comes, goes or is given another key."""

    def __init__(self) -> None:
        self.waiting: dict[JobId, Waiting] = {}
        self.lanes: dict[LaneId, Lane] = {}
        self.version = 0
        # The cluster as it was built when somebody last asked (`Capacity.builds`).
        self.built = 0

    def wish(self, job: Job) -> Wish:
        """What the job asks of a place; of one that waits it is known."""
        waiting = self.waiting.get(job.job_id)
        return waiting.shape.wish if waiting is not None else wish_of(job.spec)

    def add(self, job: Job, key: OrderKey, lane_id: LaneId) -> None:
        """The job waits there from now on, wherever it waited before."""
        known = self.waiting.get(job.job_id)
        same = known is not None and known.shape.lasts == job.spec.time_limit_s.bit_length()
        entry = Waiting(key, job.job_id, known.shape if known is not None and same else shape_of(job), lane_id)
        if entry == known:
            return
        self.waiting[job.job_id] = entry
        lane = self.lanes.get(lane_id)
        if lane is None:
            lane = self.lanes[lane_id] = Lane(self.waiting, lane_id)
        lane.add(entry)
        if lane.entries > SPARE + 2 * len(self.waiting):
            lane.tidy()
        self.version += 1

    def remove(self, job_id: JobId) -> None:
        if self.waiting.pop(job_id, None) is not None:
            self.version += 1

    def reopen(self, built: int, is_possible: Callable[[Waiting], bool]) -> None:
        """The cluster is built otherwise."""
        self.built = built
        for lane in self.lanes.values():
            lane.reopen(is_possible)

    def live_lanes(self) -> list[Lane]:
        """Those in which a job may wait; what is empty is forgotten."""
        for lane_id in [lane_id for lane_id, lane in self.lanes.items() if not lane.lines]:
            del self.lanes[lane_id]
        return list(self.lanes.values())
