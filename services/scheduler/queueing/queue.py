"""The queue: jobs that wait for a placement, in sorted lanes (`lane.py`).

Pure. `queue_order.py` sorts the lanes at each scheduling pass, because there are few.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Final

from libs.common.model import JobId, NodeId, TenantId
from libs.common.state.cluster import Job
from services.scheduler.placement.resource_request import ResourceRequest, request_of
from services.scheduler.policies import OrderKey
from services.scheduler.queueing.lane import Lane
from services.scheduler.queueing.shape import LaneId, Shape, Waiting, shape_of, shortest_limit_s

# Impossible shapes that one pass, and one idle moment, checks again: a millisecond, and some.
RECHECK_MAX: Final = 100
RECHECK_IDLE_MAX: Final = 1_000


class Queue:
    """All waiting jobs. `version` grows when a job is added, is removed or changes its key."""

    def __init__(self) -> None:
        self.waiting: dict[JobId, Waiting] = {}
        self.lanes: dict[LaneId, Lane] = {}
        self.version = 0
        # How many jobs of each tenant wait.
        self.tenants: defaultdict[TenantId, int] = defaultdict(int)
        # The position in `Capacity.builds` from which on impossible shapes are checked again, and
        # the lanes that still have some to check.
        self.built = 0
        self.unchecked: list[LaneId] = []
        self.card_bytes = 0
        # Whether use was charged since the scheduler last checked the order of the lanes, and that
        # order (`queue_order.note_charges`).
        self.is_charged = False
        self.order: list[Lane] = []

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
            and known.shape.lasts == shortest_limit_s(job).bit_length()
            and known.shape.request.excluded == excluded
        )
        shape = known.shape if known is not None and same else shape_of(job, excluded)
        entry = Waiting(key, job.job_id, shape, lane_id)
        if entry == known:
            return
        if known is not None:
            self._leave_lane(known)
        self.waiting[job.job_id] = entry
        lane = self.lanes.get(lane_id)
        if lane is None:
            lane = self.lanes[lane_id] = Lane(
                self.waiting, lane_id, card_bytes=self.card_bytes, built=self.built
            )
        lane.add(entry)
        self.tenants[shape.tenant] += 1
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

    def _leave_lane(self, entry: Waiting) -> None:
        """Count the entry as stale, and delete its lane when no live entry is left."""
        lane = self.lanes[entry.lane]
        lane.leave(entry)
        if not lane.alive:
            del self.lanes[entry.lane]
        tenants = self.tenants
        tenant = entry.shape.tenant
        tenants[tenant] -= 1
        if not tenants[tenant]:
            del tenants[tenant]

    def reopen(self, built: int, card_bytes: int) -> None:
        """Let impossible shapes of all lanes be checked again (`recheck`).

        `built` is the position in `Capacity.builds`, and `card_bytes` the memory of the largest
        card.
        """
        self.built = built
        for lane in self.lanes.values():
            if card_bytes != self.card_bytes:
                lane.card_bytes = card_bytes
                lane.regroup()
            lane.reopen(built)
        self.card_bytes = card_bytes
        self.unchecked = [lane_id for lane_id, lane in self.lanes.items() if lane.unchecked]

    def recheck(self, is_possible: Callable[[Waiting], bool], most: int) -> None:
        """Check at most so many impossible shapes again."""
        left = most
        while self.unchecked and left > 0:
            lane = self.lanes.get(self.unchecked[-1])
            if lane is not None and lane.unchecked:
                checked, found = lane.recheck(is_possible, left)
                left -= checked
                self.version += found
            else:
                self.unchecked.pop()
