"""The protocol of the published queueing figures: at every arrival and every end, all jobs are
sorted and placed again on an empty cluster.

Pure. Preemption and migration are free except for `overhead_ns`, which a job pays while it holds
its devices whenever it resumes after a break or on other nodes. The scheduler's own placement
chooses the devices; jobs that do not fit are skipped. No live cluster works like this.
"""

from collections.abc import Callable, Sequence
from typing import Final

from libs.common.facts import NodeRegistered
from libs.common.model import WHOLE_GPU, Member, NodeId
from services.scheduler.placement.choose import NO_PLACEMENT, choose_for, possible
from services.scheduler.placement.resource_request import ResourceRequest, request_of
from services.scheduler.simulate.cluster import Simulated
from services.scheduler.simulate.meter import Meter
from services.scheduler.simulate.trace import SECOND, Request


class Active:
    """A job that was submitted and has not ended.

    `attained_ns` is its time of real work; until `resumes_ns` it pays an overhead.
    """

    def __init__(self, request: Request) -> None:
        self.request: Final = request
        self.resources: Final = request_of(request.spec)
        self.attained_ns = 0
        self.resumes_ns = 0
        self.where: dict[NodeId, int] = {}
        self.began = False

    @property
    def remaining_ns(self) -> int:
        return self.request.duration_ns - self.attained_ns


# One GPU for one hour.
GPU_HOUR: Final = WHOLE_GPU * 3_600 * SECOND

Key = tuple[int, ...]


def fifo(job: Active) -> Key:
    return ()


def srtf(job: Active) -> Key:
    """Shortest remaining time first."""
    return (job.remaining_ns,)


def srsf(job: Active) -> Key:
    """Shortest remaining service first: time by GPUs. It knows how long jobs run."""
    return (job.remaining_ns * job.request.volume,)


def las(job: Active) -> Key:
    """Least attained service first, in levels of up to 1, 10, 100 ... GPU hours; in a level, the
    smaller job.

    It does not know how long jobs run. Without levels, equal jobs would take turns and all end
    late.
    """
    hours = job.attained_ns * job.request.volume // GPU_HOUR
    return (len(str(hours)) if hours else 0, job.request.volume)


# The smallest key goes first; among equals, the first submitted.
ORDERS: Final[dict[str, Callable[[Active], Key]]] = {
    "fifo": fifo,
    "srtf": srtf,
    "srsf": srsf,
    "las": las,
}


class Resort:
    """One simulation by this protocol, with the preemptions and migrations that a real cluster
    would need.
    """

    def __init__(
        self,
        nodes: Sequence[NodeRegistered],
        requests: Sequence[Request],
        order: str,
        place: str,
        meter: Meter,
        overhead_ns: int,
    ) -> None:
        self.rejected = 0
        self.scheduler = Simulated(nodes, "fifo", place)
        self.meter = meter
        self.coming = list(reversed(requests))
        self.key = ORDERS[order]
        self.overhead_ns = overhead_ns
        self.active: list[Active] = []
        self.preemptions = self.migrations = 0
        self.decisions = 0
        self.touched: dict[NodeId, None] = {}

    def run(self, until_ns: int | None = None) -> None:
        now = 0
        while self.coming or any(job.where for job in self.active):
            now, before = self._next(), now
            if until_ns is not None and now > until_ns:
                self._work(before, until_ns)
                break
            self._work(before, now)
            while self.coming and self.coming[-1].submit_ns == now:
                self._submit(self.coming.pop())
            self._place(now)

    def _submit(self, request: Request) -> None:
        """Add a job; one that the cluster could never hold is only counted."""
        job = Active(request)
        self.meter.wait(request)
        if possible(self.scheduler.state.capacity, job.resources):
            self.active.append(job)
        else:
            self.rejected += 1
            self.meter.forget(request)

    def _next(self) -> int:
        ends = [
            max(self.meter.now, job.resumes_ns) + job.remaining_ns
            for job in self.active
            if job.where
        ]
        return min([*ends, self.coming[-1].submit_ns] if self.coming else ends)

    def _work(self, before: int, now: int) -> None:
        """Advance the time, and end the jobs that have worked for as long as they run."""
        self.meter.advance(now)
        for job in self.active:
            if job.where:
                job.attained_ns += max(0, now - max(before, job.resumes_ns))
        over = [job for job in self.active if job.where and job.remaining_ns <= 0]
        for job in over:
            self.meter.leave(job.request)
            self.meter.finish(job.request)
        self.active = [job for job in self.active if not job.where or job.remaining_ns > 0]

    def _place(self, now: int) -> None:
        """Place all jobs again on an empty cluster, in order; skip those that do not fit."""
        for node_id in self.touched:
            self.scheduler.state.capacity.refresh(self.scheduler.state.cluster, node_id)
        self.touched.clear()
        chosen: dict[Active, dict[NodeId, int]] = {}
        free, refused = self.meter.total, dict[ResourceRequest, None]()
        for job in sorted(self.active, key=lambda job: (self.key(job), job.request.submit_ns)):
            if job.resources in refused or job.request.volume > free:
                continue
            where = self._choose(job.resources)
            if where:
                chosen[job] = where
                free -= job.request.volume
            else:
                refused[job.resources] = None
        self._exchange(chosen, now)

    def _choose(self, request: ResourceRequest) -> dict[NodeId, int]:
        capacity = self.scheduler.state.capacity
        choice = choose_for(capacity, request, "")
        self.decisions += 1
        if choice is NO_PLACEMENT:
            return {}
        capacity.follow(
            [Member(node_id, 1, rank, holds) for rank, (node_id, holds) in enumerate(choice)],
            request,
            "",
        )
        self.touched.update(dict.fromkeys(node_id for node_id, _ in choice))
        return {node_id: sum(hold.share for hold in holds) for node_id, holds in choice}

    def _exchange(self, chosen: dict[Active, dict[NodeId, int]], now: int) -> None:
        """Replace the running jobs by the chosen ones; devices are freed before they are given
        away.
        """
        moved = [job for job in self.active if job.where != chosen.get(job, {})]
        for job in moved:
            if job.where:
                self.meter.leave(job.request)
                self.meter.wait(job.request)
                self.migrations += job in chosen
                self.preemptions += job not in chosen
        for job in moved:
            job.where = chosen.get(job, {})
            if job.where:
                self.meter.place(job.request, list(job.where.items()))
                job.resumes_ns = now + (self.overhead_ns if job.began else 0)
                job.began = True
