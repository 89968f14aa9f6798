"""Jobs stay out of nodes that are reserved for others, and jobs with a reservation stay in it.

A job may run on such a node if it ends before the reservation begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from libs.common import facts as f
from libs.common import subjects
from libs.common.change import Change, Stamp
from libs.common.facts import AnyFact, Commit, Unknown
from libs.common.state.cluster import Cluster, Job
from libs.common.state.reservation import Reservation
from tests.sim.checkers.checker import Checker

if TYPE_CHECKING:
    from tests.sim.world import World

SECOND_NS: Final = 1_000_000_000


class ReservationsAreKept(Checker):
    """`touched` is the last sequence at which a reservation was set or cleared, which the scheduler
    may not have seen.

    `kept` counts the placements that a reservation concerned.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.touched = 0
        self.kept = 0

    def before(
        self, cluster: Cluster, fact: AnyFact | Unknown, stamp: Stamp, commit: Commit
    ) -> None:
        if not isinstance(fact, f.JobPlaced) or commit.writer != subjects.SCHEDULER:
            return
        job = cluster.jobs.get(fact.job_id)
        if job is None or self.touched > commit.seen:
            return
        placed_ns = self.world.decided.placed_ns(commit.epoch, fact)
        for each in cluster.reservations.values():
            if placed_ns < each.end_ns:
                self._look_at(job, each, [member.node_id for member in fact.members], placed_ns)

    def after(
        self,
        cluster: Cluster,
        fact: AnyFact | Unknown,
        stamp: Stamp,
        commit: Commit,
        change: Change,
    ) -> None:
        if isinstance(fact, f.ReservationSet | f.ReservationCleared):
            self.touched = stamp.seq

    def _look_at(self, job: Job, kept: Reservation, nodes: list[str], now_ns: int) -> None:
        self.kept += 1
        if job.spec.reservation == kept.name and (
            job.tenant in kept.tenants
            or job.user in kept.users
            or f"{job.tenant}/{job.user}" in kept.users
        ):
            if now_ns < kept.start_ns or any(node_id not in kept.nodes for node_id in nodes):
                self.fail(
                    f"{job.job_id} of reservation {kept.name} is placed on {nodes}, "
                    f"{(kept.start_ns - now_ns) / 1e9:.1f} s before it begins"
                )
            return
        spec = job.spec
        limit_s = spec.start_s + spec.time_limit_s if spec.time_limit_s else 0
        if spec.allocation is not None:
            limit_s = spec.allocation.expires_s  # the scheduler ends it, wherever it is
        end_ns = now_ns + (limit_s + spec.grace_s) * SECOND_NS
        in_time = limit_s and end_ns <= kept.start_ns
        stolen = [node_id for node_id in nodes if node_id in kept.nodes]
        if stolen and not in_time:
            self.fail(
                f"{job.job_id} is placed on {stolen}, which are kept for {kept.name} "
                f"{(kept.start_ns - now_ns) / 1e9:.1f} s from then on"
            )
