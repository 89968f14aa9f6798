"""A trace replayed against the real rules: the scheduler decides, and users and nodes are the
events of a heap.

Pure. A job runs from its placement for its duration, so starting costs nothing. No job is
preempted.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from libs.common import facts as f
from libs.common import subjects
from libs.common.life import job_life
from libs.common.model import JobId, attempt_key
from services.scheduler.simulate.cluster import GATEWAY, Simulated
from services.scheduler.simulate.meter import Meter
from services.scheduler.simulate.trace import Request

# At one instant, devices are freed before jobs are submitted.
END, SUBMIT = 0, 1


class Replay:
    """One replay. `rejected` counts jobs that the cluster could never hold."""

    def __init__(
        self,
        nodes: Sequence[f.NodeRegistered],
        requests: Sequence[Request],
        order: str,
        place: str,
        meter: Meter,
        backfill: bool | None = None,
    ) -> None:
        self.scheduler = Simulated(nodes, order, place, backfill)
        self.meter = meter
        self.requests = {request.job_id: request for request in requests}
        self.events = [
            (request.submit_ns, SUBMIT, number, request.job_id)
            for number, request in enumerate(requests)
        ]
        heapify(self.events)
        self.running: dict[JobId, f.JobPlaced] = {}
        self.rejected = self.preemptions = self.migrations = 0

    @property
    def decisions(self) -> int:
        return self.scheduler.decisions

    def run(self, until_ns: int | None = None) -> None:
        """Run until the events end, or until this time."""
        while self.events and (until_ns is None or self.events[0][0] <= until_ns):
            self.scheduler.now = self.events[0][0]
            self.meter.advance(self.scheduler.now)
            while self.events and self.events[0][0] == self.scheduler.now:
                _, what, _, job_id = heappop(self.events)
                if what == END:
                    self._end(job_id)
                else:
                    self._submit(self.requests[job_id])
            for fact in self.scheduler.decide():
                self._follow(fact)
        if until_ns is not None:
            self.meter.advance(until_ns)

    def _submit(self, request: Request) -> None:
        self.scheduler.hear(
            GATEWAY, f.JobSubmitted(job_id=request.job_id, spec=request.spec, tenant=request.tenant)
        )
        self.scheduler.hear(subjects.QUOTA, f.JobAdmitted(job_id=request.job_id))
        self.meter.wait(request)

    def _follow(self, fact: f.AnyFact) -> None:
        if isinstance(fact, f.JobPlaced):
            self._start(fact)
        elif isinstance(fact, f.JobClosed) and fact.outcome == job_life.REJECTED:
            self.meter.forget(self.requests[fact.job_id])
            self.rejected += 1
        elif isinstance(fact, f.JobClosed):
            self.meter.finish(self.requests[fact.job_id])
            self._charge(fact)

    def _start(self, placed: f.JobPlaced) -> None:
        request = self.requests[placed.job_id]
        for member in placed.members:
            started = f.JobStarted(
                job_id=placed.job_id, attempt=placed.attempt, node_id=member.node_id
            )
            self.scheduler.hear(subjects.node(member.node_id), started)
        self.running[placed.job_id] = placed
        self.meter.place(
            request,
            [
                (member.node_id, sum(hold.share for hold in member.gpus))
                for member in placed.members
            ],
        )
        heappush(self.events, (self.scheduler.now + request.duration_ns, END, 0, placed.job_id))

    def _end(self, job_id: JobId) -> None:
        """Let every member exit and release its devices."""
        placed, request = self.running.pop(job_id), self.requests[job_id]
        attempt, run_ms = placed.attempt, max(1, request.duration_ns // 1_000_000)
        for member in placed.members:
            node = member.node_id
            ended = f.JobFinished(
                job_id=job_id, attempt=attempt, node_id=node, exit_code=0, run_ms=run_ms
            )
            self.scheduler.hear(
                subjects.node(node),
                ended,
                f.JobReleased(job_id=job_id, attempt=attempt, node_id=node),
            )
        self.meter.leave(request)

    def _charge(self, closed: f.JobClosed) -> None:
        """Charge the attempt as quota does."""
        charge = self.scheduler.state.cluster.uncharged[attempt_key(closed.job_id, closed.attempt)]
        charged = f.UsageCharged(
            job_id=charge.job_id,
            attempt=charge.attempt,
            tenant=charge.tenant,
            share_ms=charge.share_ms,
        )
        self.scheduler.hear(subjects.QUOTA, charged)
