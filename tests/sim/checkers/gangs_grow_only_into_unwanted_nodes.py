"""A gang restarts with more nodes only where no waiting job could use them.

It must be elastic, save its work, and have run for a while.

Waiting jobs are checked only where the scheduler had read the whole log before its commit.
"""

from libs.common import subjects
from libs.common.change import Change, Stamp
from libs.common.facts import AnyFact, Commit, JobPreempted, Unknown
from libs.common.state.cluster import Cluster, Job
from services.scheduler.placement.choose import serving
from services.scheduler.queueing.limits import over_limit
from services.scheduler.queueing.queue_order import heads
from services.scheduler.reservations.reservations import is_early
from services.scheduler.state.state import State
from tests.sim.checkers.checker import Checker
from tests.sim.checkers.only_preemptible_jobs_are_preempted import RATE_MAX
from tests.sim.settings import SETTINGS
from tests.sim.world import World


class GangsGrowOnlyIntoUnwantedNodes(Checker):
    """`others` is the last sequence of another writer; `grown` counts."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.others = 0
        self.grown = 0

    def before(
        self, cluster: Cluster, fact: AnyFact | Unknown, stamp: Stamp, commit: Commit
    ) -> None:
        if isinstance(fact, JobPreempted) and fact.by == fact.job_id:
            self.grown += 1
            job = cluster.jobs[fact.job_id]
            self._said_so(job)
            if self.others <= commit.seen:
                self._unwanted_by_others(cluster, job)

    def after(
        self,
        cluster: Cluster,
        fact: AnyFact | Unknown,
        stamp: Stamp,
        commit: Commit,
        change: Change,
    ) -> None:
        if stamp.writer != subjects.SCHEDULER_KIND:
            self.others = stamp.seq

    def _said_so(self, job: Job) -> None:
        has, will_have = len(job.members), len(job.preemption.reserved)
        if not (
            job.spec.preemptible
            and job.spec.checkpoint_grace_s
            and has < will_have <= job.spec.nodes_max
        ):
            self.fail(
                f"{job.job_id} of {job.spec.nodes}..{job.spec.nodes_max} nodes has {has} and "
                f"restarts with {will_have}"
            )
        living = [
            running
            for running in self.world.truth.by_job.get(job.job_id, ())
            if running.attempt == job.attempt
        ]
        for_long_s = max(SETTINGS.grow_after_s, job.spec.min_run_s)
        ran_s = max(
            (self.world.loop.now - running.began_s for running in living), default=for_long_s
        )
        if ran_s * RATE_MAX < for_long_s:
            self.fail(f"{job.job_id} restarts after {ran_s:.1f} s")

    def _unwanted_by_others(self, cluster: Cluster, job: Job) -> None:
        state = State(cluster)
        more = [
            member.node_id
            for member in job.preemption.reserved
            if member.node_id not in job.members
        ]
        for _, job_id, shape, _ in heads(state):
            if is_early(state, cluster.jobs[job_id]):
                continue
            if over_limit(state, shape) and shape.tenant != job.tenant:
                continue
            taken = [
                node_id
                for node_id in more
                if serving(state.capacity, shape.request) >> state.capacity.index[node_id] & 1
            ]
            if taken:
                self.fail(
                    f"{job.job_id} grows onto {taken[0]}, where {job_id} could run, which waits"
                )
