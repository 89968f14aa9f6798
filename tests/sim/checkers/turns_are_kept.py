"""In a queue with time slices, a job is preempted only after its slice, and only for a job that
would yield in turn. Among equal jobs, the one whose slice ended last is placed last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from libs.common import subjects
from libs.common.change import Change, Stamp
from libs.common.facts import AnyFact, Commit, JobPlaced, JobPreempted, QueueSet, Unknown
from libs.common.life import job_life
from libs.common.state.cluster import Cluster, Job
from libs.common.state.ordering import DEFAULT_QUEUE, JobQueue
from services.scheduler.queueing.shape import shape_of
from tests.sim.checkers.checker import Checker
from tests.sim.checkers.only_preemptible_jobs_are_preempted import RATE_MAX

if TYPE_CHECKING:
    from tests.sim.world import World

EVERY_QUEUE: Final = "queues"


class TurnsAreKept(Checker):
    """`touched`: by job, and for all queues, the last sequence at which another writer changed it,
    which the scheduler may not have seen; `turns` counts those that were over.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.touched: dict[str, int] = {}
        self.turns = 0

    def before(
        self, cluster: Cluster, fact: AnyFact | Unknown, stamp: Stamp, commit: Commit
    ) -> None:
        if self.touched.get(EVERY_QUEUE, 0) > commit.seen:
            return
        if isinstance(fact, JobPreempted) and fact.sliced:
            self.turns += 1
            self._cut(cluster.jobs[fact.job_id], cluster.jobs[fact.by], cluster)
        if isinstance(fact, JobPlaced) and not cluster.jobs[fact.job_id].preemption.reserved:
            self._placed(cluster, cluster.jobs[fact.job_id], commit.seen)

    def _cut(self, job: Job, by: Job, cluster: Cluster) -> None:
        queue = _queue(cluster, job)
        if (
            queue is not _queue(cluster, by)
            or not queue.slice_s(job.spec)
            or not queue.slice_s(by.spec)
        ):
            self.fail(f"{job.job_id} is cut for {by.job_id}, and these do not take turns")
        living = [
            running
            for running in self.world.truth.by_job.get(job.job_id, ())
            if running.attempt == job.attempt
        ]
        ran_s = max(
            (self.world.loop.now - running.began_s for running in living),
            default=queue.time_slice_s,
        )
        if ran_s * RATE_MAX < queue.time_slice_s:
            self.fail(
                f"{job.job_id} is cut after {ran_s:.1f} s of its turn of {queue.time_slice_s} s"
            )

    def _placed(self, cluster: Cluster, placed: Job, seen: int) -> None:
        queue, kept = _queue(cluster, placed), placed.preemption
        if not queue.time_slice_s or self.touched.get(placed.job_id, 0) > seen:
            return
        for job in cluster.jobs.values():
            waits = job.state == job_life.QUEUED and not (
                job.cancel or job.order.held or job.order.waits or job.order.in_vain
            )
            alike = (
                _queue(cluster, job) is queue
                and job.spec.priority == placed.spec.priority
                and job.elements is None
            )
            known = (
                self.touched.get(job.job_id, 0) <= seen
                and not job.preemption.reserved
                and not job.refusals.not_before_ns
            )
            if (
                waits
                and alike
                and known
                and job.preemption.sliced_ns < kept.sliced_ns
                and shape_of(job) == shape_of(placed)
            ):
                self.fail(
                    f"{placed.job_id} is placed before {job.job_id}, whose last turn was "
                    "over before its own"
                )

    def after(
        self,
        cluster: Cluster,
        fact: AnyFact | Unknown,
        stamp: Stamp,
        commit: Commit,
        change: Change,
    ) -> None:
        if isinstance(fact, QueueSet):
            self.touched[EVERY_QUEUE] = stamp.seq
        if stamp.writer != subjects.SCHEDULER_KIND:
            self.touched.update({str(job_id): stamp.seq for job_id in change.jobs})


def _queue(cluster: Cluster, job: Job) -> JobQueue:
    name = job.spec.queue or DEFAULT_QUEUE
    return cluster.queues.get(name) or JobQueue(name)
