"""A job is placed on a node that is kept for others, or for nobody, only if it has ended before that time begins; and a job of a
reservation only there, and while that lasts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from libs.common import facts as f
from libs.common.change import Change, Stamp
from libs.common.cluster import Cluster, Job
from libs.common.facts import AnyFact, Commit, Unknown
from libs.common.reservation import Reservation
from tests.sim.checkers.checker import Checker

if TYPE_CHECKING:
    from tests.sim.world import World

SECOND_NS: Final = 1_000_000_000
# A commit may wait for the one before it: the decision is so much older than its time in the log.
LATE_NS: Final = 2 * SECOND_NS


class NobodyStealsAReservation(Checker):
    """`touched` is the last sequence at which a reservation was set or cleared, which the scheduler may not have seen; `kept` counts the
    placements that one concerned.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.touched = 0
        self.kept = 0

    def before(self, cluster: Cluster, fact: AnyFact | Unknown, stamp: Stamp, commit: Commit) -> None:
        job = cluster.jobs.get(fact.job_id) if isinstance(fact, f.JobPlaced) else None
        if not isinstance(fact, f.JobPlaced) or job is None or self.touched > commit.seen:
            return
        for each in cluster.reservations.values():
            if stamp.at_ns < each.end_ns:
                self._look_at(job, each, [member.node_id for member in fact.members], stamp.at_ns)

    def after(self, cluster: Cluster, fact: AnyFact | Unknown, stamp: Stamp, commit: Commit, change: Change) -> None:
        if isinstance(fact, f.ReservationSet | f.ReservationCleared):
            self.touched = stamp.seq

    def _look_at(self, job: Job, kept: Reservation, nodes: list[str], now_ns: int) -> None:
        self.kept += 1
        if job.spec.reservation == kept.name and (job.tenant in kept.tenants or job.user in kept.users):
            if now_ns < kept.start_ns or any(node_id not in kept.nodes for node_id in nodes):
                self.fail(
                    f"{job.job_id} of reservation {kept.name} is placed on {nodes}, {(kept.start_ns - now_ns) / 1e9:.1f} s before it begins"
                )
            return
        spec = job.spec
        end_ns = now_ns + (spec.start_s + spec.time_limit_s + spec.grace_s) * SECOND_NS
        in_time = spec.time_limit_s and end_ns <= kept.start_ns + LATE_NS
        stolen = [node_id for node_id in nodes if node_id in kept.nodes]
        if stolen and not in_time:
            self.fail(
                f"{job.job_id} is placed on {stolen}, which are kept for {kept.name} {(kept.start_ns - now_ns) / 1e9:.1f} s from then on"
            )
