"""The queue: jobs that wait for a placement, those of equal shape together.

Pure. A shape that does not fit is asked once per change, not once per job. Removal is lazy: an entry whose job is not
waiting under that very key any more is dropped when it comes to the head.
"""

from collections.abc import Iterator
from heapq import heappop, heappush

import msgspec

from libs.common.cluster import Job
from libs.common.model import JobId, TenantId
from services.scheduler.placement.wish import Wish, wish_of
from services.scheduler.policies import OrderKey


class Shape(msgspec.Struct, frozen=True, cache_hash=True):
    """What makes two jobs equal for placement."""

    tenant: TenantId
    wish: Wish


def shape_of(job: Job) -> Shape:
    return Shape(job.tenant, wish_of(job.spec))


class Queue:
    """`version` grows when a job comes or goes. `front` holds the `first` job of every shape, and some that were that before."""

    def __init__(self) -> None:
        self.waiting: dict[JobId, tuple[OrderKey, Shape]] = {}
        self.shapes: dict[Shape, list[tuple[OrderKey, JobId]]] = {}
        self.first: dict[Shape, tuple[OrderKey, JobId]] = {}
        self.front: list[tuple[OrderKey, JobId, Shape]] = []
        self.version = 0

    def wish(self, job: Job) -> Wish:
        """What the job asks of a place; of one that waits it is known."""
        waiting = self.waiting.get(job.job_id)
        return waiting[1].wish if waiting is not None else wish_of(job.spec)

    def add(self, job: Job, key: OrderKey) -> None:
        shape = shape_of(job)
        if job.job_id in self.waiting:
            return
        self.waiting[job.job_id] = (key, shape)
        heap = self.shapes.setdefault(shape, [])
        heappush(heap, (key, job.job_id))
        if heap[0][1] == job.job_id:
            self._put_in_front(shape, heap[0])
        self.version += 1

    def remove(self, job_id: JobId) -> None:
        if self.waiting.pop(job_id, None) is not None:
            self.version += 1

    def heads(self) -> Iterator[tuple[OrderKey, JobId, Shape]]:
        """The first waiting job of each shape, in order; only as many are looked for as are asked for."""
        passed: list[tuple[OrderKey, JobId, Shape]] = []
        try:
            while self._settle():
                yield self.front[0]
                passed.append(heappop(self.front))
        finally:
            for entry in passed:
                heappush(self.front, entry)

    def _settle(self) -> bool:
        """Whether a job waits that was not passed; then the first one stands in front."""
        while self.front:
            key, job_id, shape = self.front[0]
            if self.first.get(shape) == (key, job_id):
                if self.waiting.get(job_id) == (key, shape):
                    return True
                heappop(self.front)
                self._bring_forward(shape)
            else:
                heappop(self.front)
        return False

    def _bring_forward(self, shape: Shape) -> None:
        """The shape's first job went: the next one takes its place."""
        del self.first[shape]
        heap = self.shapes[shape]
        while heap:
            if self.waiting.get(heap[0][1]) == (heap[0][0], shape):
                self._put_in_front(shape, heap[0])
                return
            heappop(heap)
        del self.shapes[shape]

    def _put_in_front(self, shape: Shape, entry: tuple[OrderKey, JobId]) -> None:
        self.first[shape] = entry
        heappush(self.front, (*entry, shape))
