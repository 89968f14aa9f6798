"""The queue: jobs that wait for a placement, in lanes that are sorted within themselves; in a lane those of equal shape together.

Pure. A shape that does not fit is asked once per change, not once per job. Removal is lazy: an entry whose job is not
waiting under that very key any more is dropped when it comes to the head. Which lane goes first is asked anew each time
(`line.py`): there are few.
"""

from bisect import insort
from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import NamedTuple

import msgspec

from libs.common.cluster import Job
from libs.common.model import JobId, TenantId
from services.scheduler.placement.wish import Wish, wish_of
from services.scheduler.policies import OrderKey


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


class Lane:
    """`lines` are the entries of each shape, in order; `front` holds the first one of each."""

    def __init__(self, waiting: dict[JobId, Waiting], lane_id: LaneId) -> None:
        self.waiting = waiting
        self.lane_id = lane_id
        self.lines: dict[Shape, deque[Waiting]] = {}
        self.front: list[Waiting] = []

    def add(self, entry: Waiting) -> None:
        line = self.lines.get(entry.shape)
        if line is None:
            line = self.lines[entry.shape] = deque()
        insort(line, entry)
        if line[0] is entry:
            if len(line) > 1:
                self.front.remove(line[1])
                heapify(self.front)
            heappush(self.front, entry)

    def heads(self) -> Iterator[Waiting]:
        """The first waiting job of each shape, in order; only as many are looked for as are asked for."""
        passed: list[Waiting] = []
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
            entry = self.front[0]
            if self.waiting.get(entry.job_id) is entry:
                return True
            line = self.lines[entry.shape]
            line.popleft()
            if line:
                heapreplace(self.front, line[0])
            else:
                heappop(self.front)
                del self.lines[entry.shape]
        return False


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
        entry = Waiting(key, job.job_id, known.shape if known is not None and same else shape_of(job), lane_id)
        if entry == known:
            return
        self.waiting[job.job_id] = entry
        lane = self.lanes.get(lane_id)
        if lane is None:
            lane = self.lanes[lane_id] = Lane(self.waiting, lane_id)
        lane.add(entry)
        self.version += 1

    def remove(self, job_id: JobId) -> None:
        if self.waiting.pop(job_id, None) is not None:
            self.version += 1

    def live_lanes(self) -> list[Lane]:
        """Those in which a job waits; what is empty is forgotten."""
        for lane_id in [lane_id for lane_id, lane in self.lanes.items() if not lane.settle()]:
            del self.lanes[lane_id]
        return list(self.lanes.values())
