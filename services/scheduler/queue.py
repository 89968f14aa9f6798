"""The queue: jobs that wait for a placement, in lanes that are sorted within themselves; in a lane those of equal shape together.

Pure. A shape that does not fit is asked once per change, not once per job. Removal is lazy: an entry whose job is not
waiting under that very key any more is dropped when it comes to the head. Which lane goes first is asked anew each time
(`line.py`): there are few.
"""

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import NamedTuple

import msgspec

from libs.common.cluster import Job
from libs.common.model import JobId, TenantId
from services.scheduler.placement.wish import Wish, wish_of
from services.scheduler.policies import OrderKey


class Shape(msgspec.Struct, frozen=True, order=True, cache_hash=True):
    """What makes two jobs equal for placement. `lasts` are the bits of their time limits: a short one may begin where a long one may not
    (`backfill.py`).
    """

    tenant: TenantId
    wish: Wish
    lasts: int = 0


class LaneId(NamedTuple):
    """The queue that a job named, and its tenant where that queue's policy compares tenants."""

    queue: str
    tenant: str


class Waiting(NamedTuple):
    key: OrderKey
    shape: Shape
    lane: LaneId


Head = tuple[OrderKey, JobId, Shape]


def shape_of(job: Job) -> Shape:
    return Shape(job.tenant, wish_of(job.spec), job.spec.time_limit_s.bit_length())


class Lane:
    """`front` holds the `first` job of every shape, and some that were that before."""

    def __init__(self, waiting: dict[JobId, Waiting], lane_id: LaneId) -> None:
        self.waiting = waiting
        self.lane_id = lane_id
        self.shapes: dict[Shape, list[tuple[OrderKey, JobId]]] = {}
        self.first: dict[Shape, tuple[OrderKey, JobId]] = {}
        self.front: list[Head] = []

    def add(self, job_id: JobId, key: OrderKey, shape: Shape) -> None:
        heap = self.shapes.setdefault(shape, [])
        heappush(heap, (key, job_id))
        if heap[0] == (key, job_id) and self.first.get(shape) != heap[0]:
            self._put_in_front(shape, heap[0])

    def heads(self) -> Iterator[Head]:
        """The first waiting job of each shape, in order; only as many are looked for as are asked for."""
        passed: list[Head] = []
        try:
            while self.settle():
                yield self.front[0]
                passed.append(heappop(self.front))
        finally:
            for entry in passed:
                heappush(self.front, entry)

    def settle(self) -> bool:
        """Whether a job waits that was not passed; then the first one stands in front."""
        while self.front:
            key, job_id, shape = self.front[0]
            if self.first.get(shape) == (key, job_id):
                if self._waits(job_id, key, shape):
                    return True
                heappop(self.front)
                self._bring_forward(shape)
            else:
                heappop(self.front)
        return False

    def _waits(self, job_id: JobId, key: OrderKey, shape: Shape) -> bool:
        return self.waiting.get(job_id) == (key, shape, self.lane_id)

    def _bring_forward(self, shape: Shape) -> None:
        """The shape's first job went: the next one takes its place."""
        del self.first[shape]
        heap = self.shapes[shape]
        while heap:
            if self._waits(heap[0][1], heap[0][0], shape):
                self._put_in_front(shape, heap[0])
                return
            heappop(heap)
        del self.shapes[shape]

    def _put_in_front(self, shape: Shape, entry: tuple[OrderKey, JobId]) -> None:
        self.first[shape] = entry
        heappush(self.front, (*entry, shape))


class Queue:
    """`version` grows when a job comes, goes or is given another key."""

    def __init__(self) -> None:
        self.waiting: dict[JobId, Waiting] = {}
        self.lanes: dict[LaneId, Lane] = {}
        self.version = 0

    def wish(self, job: Job) -> Wish:
        """What the job asks of a place; of one that waits it is known."""
        waiting = self.waiting.get(job.job_id)
        return waiting.shape.wish if waiting is not None else wish_of(job.spec)

    def add(self, job: Job, key: OrderKey, lane_id: LaneId) -> None:
        """The job waits there from now on, wherever it waited before."""
        known = self.waiting.get(job.job_id)
        same = known is not None and known.shape.lasts == job.spec.time_limit_s.bit_length()
        waiting = Waiting(key, known.shape if known is not None and same else shape_of(job), lane_id)
        if waiting == known:
            return
        self.waiting[job.job_id] = waiting
        lane = self.lanes.get(lane_id)
        if lane is None:
            lane = self.lanes[lane_id] = Lane(self.waiting, lane_id)
        lane.add(job.job_id, key, waiting.shape)
        self.version += 1

    def remove(self, job_id: JobId) -> None:
        if self.waiting.pop(job_id, None) is not None:
            self.version += 1

    def live_lanes(self) -> list[Lane]:
        """Those in which a job waits; what is empty is forgotten."""
        for lane_id in [lane_id for lane_id, lane in self.lanes.items() if not lane.settle()]:
            del self.lanes[lane_id]
        return list(self.lanes.values())
