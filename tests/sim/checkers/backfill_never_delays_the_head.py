"""A job placed behind the first waiting one never delays it; without backfill no job is placed
there. A job on nodes that a waiting job lends counts as ended once that job could start without it.

The order is that of `services/scheduler/queueing/queue_order.py`. The checker computes on its own
when the first job fits: on the cluster without the attempts that will have ended, one after the
other. A job with reserved devices may be placed on them later. The checker acts only on commits
before which the scheduler had read the whole log, its own commits included, and while no nodes are
reserved. It skips waits after a refusal, because their end within a commit depends on the
scheduler's own clock.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec.structs import replace

from libs.common import facts as f
from libs.common.change import Change, Stamp
from libs.common.facts import AnyFact, Commit, Unknown
from libs.common.life import job_life
from libs.common.model import JobId, attempt_key
from libs.common.state.cluster import Cluster, Job
from services.scheduler.placement.capacity import Capacity
from services.scheduler.placement.choose import NO_PLACEMENT, Choice, choose
from services.scheduler.placement.sharing_domains import sharing_domain_of
from services.scheduler.queueing.backfill import borrowers_behind
from services.scheduler.queueing.limits import is_blocked, passes_limit
from services.scheduler.queueing.queue_order import heads
from services.scheduler.state.state import State
from tests.sim.checkers.checker import Checker

if TYPE_CHECKING:
    from tests.sim.world import World

SECOND_NS: Final = 1_000_000_000
# A commit may wait for the one before it: the decision is so much older than its time in the log.
LATE_NS: Final = 2 * SECOND_NS
# Once all that runs now has ended, whenever that may be; not even then.
SOME_TIME: Final = 1 << 70
NEVER: Final = 1 << 71
AT_ONCE: Final = 0

Held = TypeVar("Held")


class BackfillNeverDelaysTheHead(Checker):
    """`first` is who is passed by the placement that is folded now, and from when on it fits
    without that; `passed` counts such placements.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.first: tuple[Job, int] | None = None
        self.passed = 0
        self.called_back: Collection[JobId] = ()

    def before(
        self, cluster: Cluster, fact: AnyFact | Unknown, stamp: Stamp, commit: Commit
    ) -> None:
        self.first = None
        placed = cluster.jobs.get(fact.job_id) if isinstance(fact, f.JobPlaced) else None
        known = (
            commit.seen == cluster.seq - 1
            and not cluster.reservations
            and not _any_refused(cluster, stamp.at_ns)
        )
        if placed is not None and known and not placed.preemption.reserved:
            first = self._passed_by(cluster, placed)
            if first is not None:
                self.passed += 1
                behind = borrowers_behind(State(cluster), first)
                self.called_back = (*behind, *([fact.job_id] if fact.lender else []))
                now_ns = stamp.at_ns
                self.first = (first, _fits_from(cluster, first, now_ns, None, self.called_back))

    def after(
        self,
        cluster: Cluster,
        fact: AnyFact | Unknown,
        stamp: Stamp,
        commit: Commit,
        change: Change,
    ) -> None:
        if self.first is not None and isinstance(fact, f.JobPlaced):
            first, before_ns = self.first
            stranger = cluster.jobs[fact.job_id]
            after_ns = _fits_from(cluster, first, stamp.at_ns, stranger, self.called_back)
            if after_ns > before_ns + LATE_NS:
                self.fail(
                    f"{fact.job_id} passes {first.job_id} and lets it begin at "
                    f"{_s(after_ns)} instead of {_s(before_ns)}"
                )

    def _passed_by(self, cluster: Cluster, placed: Job) -> Job | None:
        """The first job that waits for devices; None when that is the placed one."""
        state = State(cluster)
        found: Job | None = None
        for _, job_id, shape, _ in heads(state):
            job = cluster.jobs[job_id]
            if job is placed:
                return found
            choice = _choice(cluster, job, set())
            if is_blocked(state, shape, job) or (
                choice is not NO_PLACEMENT and passes_limit(state, shape, choice)
            ):
                continue
            queue = cluster.queues.get(job.spec.queue or "default")
            if queue is not None and not queue.backfill:
                self.fail(f"{placed.job_id} passes {job_id} in queue {queue.name} without backfill")
            found = found or job
        return None


def _any_refused(cluster: Cluster, at_ns: int) -> bool:
    waiting = (job for job in cluster.jobs.values() if job.state == job_life.QUEUED)
    return any(job.refusals.changes_ns(at_ns - LATE_NS) for job in waiting)


def _fits_from(
    cluster: Cluster,
    first: Job,
    now_ns: int,
    stranger: Job | None,
    called_back: Collection[JobId],
) -> int:
    """`stranger` was just placed: nothing but its time limit says when it ends. `called_back` are
    jobs on lent nodes.
    """
    running = [
        job
        for job in cluster.jobs.values()
        if job.state in job_life.ON_NODES and job.spec.serve is None
    ]
    ends = {
        job.job_id: (
            AT_ONCE
            if job.job_id in called_back
            else _end_ns(job, now_ns, by_estimate=job is not stranger)
        )
        for job in running
    }
    for at_ns in sorted({AT_ONCE, *ends.values()}):
        ended = [
            job
            for job in running
            if ends[job.job_id] <= at_ns
            and (at_ns < SOME_TIME or job is not stranger or ends[job.job_id] == AT_ONCE)
        ]
        if (
            _choice(cluster, first, {attempt_key(job.job_id, job.attempt) for job in ended})
            is not NO_PLACEMENT
        ):
            return at_ns
    return NEVER


def _end_ns(job: Job, now_ns: int, by_estimate: bool) -> int:
    spec = job.spec
    limit_s = spec.start_s + spec.time_limit_s + spec.grace_s if spec.time_limit_s else 0
    end_ns = job.placed_ns + (limit_s or (spec.estimate_s if by_estimate else 0)) * SECOND_NS
    if job.expires_ns and by_estimate:
        end_ns = job.expires_ns
    return end_ns if end_ns > now_ns else SOME_TIME


def _choice(cluster: Cluster, job: Job, gone: set[str]) -> Choice:
    """Return a placement of the job on the cluster without these attempts."""
    left = replace(
        cluster,
        gpus={
            uuid: replace(view, holds=_without(view.holds, gone), parts=_without(view.parts, gone))
            for uuid, view in cluster.gpus.items()
        },
        nodes={
            node_id: replace(
                node,
                held=_without(node.held, gone),
                members={
                    job_id: attempt
                    for job_id, attempt in node.members.items()
                    if attempt_key(job_id, attempt) not in gone
                },
            )
            for node_id, node in cluster.nodes.items()
        },
    )
    capacity = Capacity()
    for node_id in left.nodes:
        capacity.refresh(left, node_id)
    return choose(capacity, job.spec, sharing_domain_of(cluster, job.tenant))


def _without(held: dict[str, Held], gone: set[str]) -> dict[str, Held]:
    return {key: value for key, value in held.items() if key not in gone}


def _s(at_ns: int) -> str:
    return "an unknown time" if at_ns >= SOME_TIME else f"{at_ns / SECOND_NS:.1f} s"
