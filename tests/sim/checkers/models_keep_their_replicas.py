"""A model has the requested number of ready replicas some time after the last fault.

Without faults it never has fewer.

A ready replica is stopped only when enough others are ready. The checker tests each decision to
stop one, and only in runs without faults: in others a replica may die between the decision and its
commit. A model whose replicas crash has fewer, because restarts are delayed. A replica waits in a
queue like any job, as long as other jobs hold the devices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from libs.common import facts as f
from libs.common.change import Change, Stamp
from libs.common.facts import AnyFact, Commit, Unknown
from libs.common.life import job_life
from libs.common.model import JobId
from libs.common.state.cluster import Cluster, Job, Model, is_ready, ready_replicas
from libs.common.state.ordering import DEFAULT_QUEUE, JobQueue
from tests.sim.checkers.checker import Checker
from tests.sim.models import BAD

if TYPE_CHECKING:
    from tests.sim.world import World

# Of a model that crashes at once, in one run: each crash twice as long after the one before, and
# those that machines ended.
BEGUN_MAX: Final = 30
# From its placement until it serves.
BEGIN_S: Final = 8.0


class ModelsKeepTheirReplicas(Checker):
    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.placed_s: dict[JobId, float] = {}

    def after(
        self,
        cluster: Cluster,
        fact: AnyFact | Unknown,
        stamp: Stamp,
        commit: Commit,
        change: Change,
    ) -> None:
        if isinstance(fact, f.JobPlaced):
            self.placed_s[fact.job_id] = self.world.loop.time()

    def before(
        self, cluster: Cluster, fact: AnyFact | Unknown, stamp: Stamp, commit: Commit
    ) -> None:
        if (
            isinstance(fact, f.ModelUndeployed)
            and (model := cluster.models.get(fact.name)) is not None
            and model.deployed
        ):
            self._must_be_whole(cluster, model)
        if isinstance(fact, f.ReplicasScaled) and fact.retire and self.world.plan.storm_s <= 0:
            self._must_be_spared(cluster, cluster.models[fact.model], fact)

    def _must_be_whole(self, cluster: Cluster, model: Model) -> None:
        ready = len(ready_replicas(cluster, model.name))
        if model.name == BAD:
            if model.next_ordinal > BEGUN_MAX:
                self.fail(
                    f"{model.name} crashes at once, and {model.next_ordinal - 1} replicas of "
                    "it were begun"
                )
        elif not ready <= model.replicas <= ready + self._coming(cluster, model):
            states = [
                (job_id, cluster.jobs[job_id].state, cluster.jobs[job_id].members)
                for job_id in model.jobs
            ]
            self.fail(
                f"{model.name} asked for {model.replicas} replicas and {ready} are ready "
                f"long after the storm: {states}"
            )

    def _must_be_spared(self, cluster: Cluster, model: Model, fact: f.ReplicasScaled) -> None:
        ready = [endpoint.job_id for endpoint in ready_replicas(cluster, model.name)]
        left = [job_id for job_id in ready if job_id not in fact.retire]
        if len(left) < len(ready) and len(left) < model.replicas:
            self.fail(
                f"{model.name} asked for {model.replicas} ready replicas and is left with "
                f"{left} of {ready} by {fact}"
            )

    def _coming(self, cluster: Cluster, model: Model) -> int:
        """Replicas that wait behind jobs, or that were placed a moment ago."""
        jobs = [cluster.jobs[job_id] for job_id in model.jobs if not is_ready(cluster.jobs[job_id])]
        busy = _may_wait(cluster)
        waiting = sum(1 for job in jobs if busy and job.state == job_life.QUEUED)
        since_s = self.world.loop.time() - BEGIN_S
        return waiting + sum(
            1
            for job in jobs
            if job.state in job_life.ON_NODES and self.placed_s[job.job_id] > since_s
        )


def _may_wait(cluster: Cluster) -> bool:
    """Return whether a replica may wait for its turn in a queue.

    An ordinary job holds devices; or one waits for devices in a queue without backfill, in which
    nothing overtakes it.
    """
    on_nodes = [job for job in cluster.jobs.values() if job.state in job_life.ON_NODES]
    if any(job.spec.serve is None for job in on_nodes):
        return True
    return bool(on_nodes) and any(
        job.state == job_life.QUEUED
        and job.spec.serve is None
        and not _queue_of(cluster, job).backfill
        for job in cluster.jobs.values()
    )


def _queue_of(cluster: Cluster, job: Job) -> JobQueue:
    name = job.spec.queue or DEFAULT_QUEUE
    return cluster.queues.get(name) or JobQueue(name)
