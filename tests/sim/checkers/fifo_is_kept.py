"""In a fifo queue no job is placed before an earlier one of its tenant that asks for no more.

This applies to queues without backfill and time slices.

There are two exceptions. A job may start for which devices were reserved while it was the first.
A job whose place is being measured by its preflight has that place reserved already, so others may
start elsewhere before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from libs.common import facts as f
from libs.common import subjects
from libs.common.change import Change, Stamp
from libs.common.facts import AnyFact, Commit, JobPlaced, Unknown
from libs.common.life import job_life
from libs.common.state.cluster import Cluster, Job
from services.scheduler.placement.resource_request import request_of
from tests.sim.checkers.checker import Checker

if TYPE_CHECKING:
    from tests.sim.world import World

# Two jobs are compared by these; in all else they must be alike, or the cluster may have room for
# the later alone (another MIG profile).
FOREVER: Final = 1 << 62
AMOUNTS: Final = ("nodes", "gpus", "share", "cpus_milli", "memory_bytes")


class FifoIsKept(Checker):
    """`touched`: by job and by queue, the last sequence at which another writer changed it, which
    the scheduler may not have seen.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.touched: dict[str, int] = {}

    def before(
        self, cluster: Cluster, fact: AnyFact | Unknown, stamp: Stamp, commit: Commit
    ) -> None:
        placed = cluster.jobs.get(fact.job_id) if isinstance(fact, JobPlaced) else None
        queue = cluster.queues.get(placed.spec.queue or "default") if placed is not None else None
        if (
            placed is None
            or queue is None
            or queue.policy != "fifo"
            or queue.backfill
            or queue.time_slice_s
            or placed.preemption.reserved
            or self.touched.get(f"queue {queue.name}", 0) > commit.seen
        ):
            return
        measured = {test.job_id for test in cluster.fabric.tests.values()}
        for job in cluster.jobs.values():
            if job.job_id in measured:
                continue
            if _could_go(job, placed) and self.touched.get(job.job_id, 0) <= commit.seen:
                self.fail(
                    f"{placed.job_id} is placed before {job.job_id}, which came first and "
                    "asks for no more"
                )

    def after(
        self,
        cluster: Cluster,
        fact: AnyFact | Unknown,
        stamp: Stamp,
        commit: Commit,
        change: Change,
    ) -> None:
        if isinstance(fact, f.QueueSet):
            self.touched[f"queue {fact.queue}"] = stamp.seq
        if stamp.writer != subjects.SCHEDULER_KIND:
            self.touched.update({str(job_id): stamp.seq for job_id in change.jobs})


def _could_go(job: Job, placed: Job) -> bool:
    if (
        job.seq >= placed.seq
        or job.state != job_life.QUEUED
        or (job.tenant, job.spec.queue) != (placed.tenant, placed.spec.queue)
    ):
        return False
    one, other = request_of(job.spec), request_of(placed.spec)
    asks_no_more = all(getattr(one, name) <= getattr(other, name) for name in AMOUNTS)
    alike = (
        replace(one, strategy=other.strategy, **{name: getattr(other, name) for name in AMOUNTS})
        == other
    )
    waits_for = (job.spec.reservation, job.spec.reservation and job.user) == (
        placed.spec.reservation,
        placed.spec.reservation and placed.user,
    )
    asks_no_more = asks_no_more and waits_for and _length_s(job) <= _length_s(placed)
    kept_back = (
        job.cancel
        or job.order.held
        or job.order.waits
        or job.order.in_vain
        or job.refusals.not_before_ns
    )
    return asks_no_more and alike and job.has_room and not kept_back


def _length_s(job: Job) -> int:
    """Return how long the job may run: a shorter one may fit before a reservation begins."""
    allocation = job.spec.allocation
    return (allocation.expires_s if allocation is not None else job.spec.time_limit_s) or FOREVER
