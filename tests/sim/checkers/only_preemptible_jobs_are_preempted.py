"""Only preemptible jobs are preempted, and they are tried again.

The preempting job has a higher priority, or the same one after its turn, or it lent its nodes. The
preempted job has run for at least its requested time. It is queued again whatever its exit, unless
it was cancelled or had ended by itself before the stop reached it.
"""

from typing import Final

from libs.common.change import Change, Stamp
from libs.common.facts import (
    AnyFact,
    Commit,
    JobClosed,
    JobPreempted,
    JobRequeued,
    JobUpdated,
    Unknown,
)
from libs.common.life import job_life
from libs.common.reasons import BY_THE_MACHINE, GOES_ON, GPU_ERROR, NOT_STARTED, STOPPED
from libs.common.state.cluster import Cluster, Job
from tests.sim.checkers.checker import Checker
from tests.sim.world import World

# Two machines' clocks differ by so much at most (`machine.power_on`).
RATE_MAX: Final = 1.01


class OnlyPreemptibleJobsArePreempted(Checker):
    """`updated`: by job, the last sequence at which its priority was changed, which the scheduler
    may not have seen.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.updated: dict[str, int] = {}

    def after(
        self,
        cluster: Cluster,
        fact: AnyFact | Unknown,
        stamp: Stamp,
        commit: Commit,
        change: Change,
    ) -> None:
        if isinstance(fact, JobUpdated):
            self.updated[fact.job_id] = stamp.seq

    def before(
        self, cluster: Cluster, fact: AnyFact | Unknown, stamp: Stamp, commit: Commit
    ) -> None:
        if isinstance(fact, JobPreempted):
            self._preempted(cluster, fact, commit.seen)
        if isinstance(fact, JobClosed):
            job = cluster.jobs[fact.job_id]
            well = fact.outcome == "completed" or job.cancel is not None
            if job.stop_reason in GOES_ON and not well and not _ended_by_itself(job):
                self.fail(
                    f"{fact.job_id} was {job.stop_reason} and is {fact.outcome} for it "
                    f"({fact.reason})"
                )
        if (
            isinstance(fact, JobRequeued)
            and fact.reason in GOES_ON
            and _ended_by_itself(cluster.jobs[fact.job_id])
        ):
            self.fail(f"{fact.job_id} had ended by itself and is queued again as {fact.reason}")

    def _preempted(self, cluster: Cluster, fact: JobPreempted, seen: int) -> None:
        if fact.by == fact.job_id:
            return  # `gangs_grow_only_into_unwanted_nodes`
        job, by = cluster.jobs[fact.job_id], cluster.jobs[fact.by]
        known = max(self.updated.get(fact.job_id, 0), self.updated.get(fact.by, 0)) <= seen
        if not job.spec.preemptible or (
            known
            and job.spec.priority >= by.spec.priority + fact.sliced
            and not job.preemption.lender
        ):
            self.fail(
                f"{fact.job_id} of priority {job.spec.priority} is preempted for {fact.by} "
                f"of {by.spec.priority}"
            )
        living = [
            running
            for running in self.world.truth.by_job.get(fact.job_id, ())
            if running.attempt == fact.attempt
        ]
        ran_s = max(
            (self.world.loop.now - running.began_s for running in living),
            default=job.spec.min_run_s,
        )
        if ran_s * RATE_MAX < job.spec.min_run_s:
            self.fail(f"{fact.job_id} is preempted after {ran_s:.1f} s of {job.spec.min_run_s}")


def _ended_by_itself(job: Job) -> bool:
    """Return whether every member ran and ended before a stop or a fault of the machine."""
    return not any(
        member.state == job_life.REFUSED
        or member.reason in (STOPPED, NOT_STARTED, GPU_ERROR, *BY_THE_MACHINE)
        for member in job.members.values()
    )
