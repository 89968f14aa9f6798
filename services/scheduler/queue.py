"""The queue: jobs that wait for a placement, those of equal shape together.

Pure. A shape that does not fit is asked once per change, not once per job. Removal is lazy: an entry whose job is not
waiting under that very key any more is dropped when it comes to the head.
"""

from heapq import heappop, heappush

import msgspec

from libs.common.cluster import Job
from libs.common.model import JobId, TenantId
from services.scheduler.policies import OrderKey


class Shape(msgspec.Struct, frozen=True, order=True):
    """What makes two jobs equal for placement."""

    tenant: TenantId
    nodes: int
    gpus: int
    gpu_share: int

    @property
    def total_share(self) -> int:
        """Hundredths of a GPU, over all nodes."""
        return self.nodes * self.gpus * self.gpu_share


def shape_of(job: Job) -> Shape:
    return Shape(job.tenant, job.spec.nodes, job.spec.gpus, job.spec.gpu_share)


class Queue:
    """`version` grows when a job comes or goes."""

    def __init__(self) -> None:
        self.waiting: dict[JobId, tuple[OrderKey, Shape]] = {}
        self.shapes: dict[Shape, list[tuple[OrderKey, JobId]]] = {}
        self.version = 0

    def add(self, job: Job, key: OrderKey) -> None:
        shape = shape_of(job)
        if job.job_id in self.waiting:
            return
        self.waiting[job.job_id] = (key, shape)
        heappush(self.shapes.setdefault(shape, []), (key, job.job_id))
        self.version += 1

    def remove(self, job_id: JobId) -> None:
        if self.waiting.pop(job_id, None) is not None:
            self.version += 1

    def heads(self) -> list[tuple[OrderKey, JobId, Shape]]:
        """The first waiting job of each shape, in order."""
        found = []
        for shape in list(self.shapes):
            head = self._head(shape)
            if head is not None:
                found.append((*head, shape))
        found.sort()
        return found

    def _head(self, shape: Shape) -> tuple[OrderKey, JobId] | None:
        heap = self.shapes[shape]
        while heap:
            key, job_id = heap[0]
            if self.waiting.get(job_id) == (key, shape):
                return key, job_id
            heappop(heap)
        del self.shapes[shape]
        return None
