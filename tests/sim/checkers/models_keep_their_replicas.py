"""A model has what it asked for: some time after the last fault as many ready as asked for, and without faults never fewer.

Never fewer: a replica that serves is ended only when as many as asked for are ready without it. That is asked of each decision to end one,
and only in runs without faults, for in others a replica may die between the decision and its place in the log. A model whose replicas
crash has fewer, and does not try all the time. A replica stands in a queue like any job, and may wait as long as jobs hold devices.
"""

from typing import Final

from libs.common import facts as f
from libs.common import job_life
from libs.common.change import Stamp
from libs.common.cluster import Cluster, Model, ready_replicas
from libs.common.facts import AnyFact, Commit, Unknown
from tests.sim.checkers.checker import Checker
from tests.sim.models import BAD

# Of a model that crashes at once, in one run: each crash twice as long after the one before, and those that machines ended.
BEGUN_MAX: Final = 30


class ModelsKeepTheirReplicas(Checker):
    def before(self, cluster: Cluster, fact: AnyFact | Unknown, stamp: Stamp, commit: Commit) -> None:
        if isinstance(fact, f.ModelUndeployed) and (model := cluster.models.get(fact.name)) is not None and model.deployed:
            self._must_be_whole(cluster, model)
        if isinstance(fact, f.ReplicasScaled) and fact.retire and self.world.plan.storm_s <= 0:
            self._must_be_spared(cluster, cluster.models[fact.model], fact)

    def _must_be_whole(self, cluster: Cluster, model: Model) -> None:
        ready = len(ready_replicas(cluster, model.name))
        if model.name == BAD:
            if model.next_ordinal > BEGUN_MAX:
                self.fail(f"{model.name} crashes at once, and {model.next_ordinal - 1} replicas of it were begun")
        elif ready != model.replicas and not _waits_for_jobs(cluster, model):
            states = [(job_id, cluster.jobs[job_id].state, cluster.jobs[job_id].members) for job_id in model.jobs]
            self.fail(f"{model.name} asked for {model.replicas} replicas and {ready} are ready long after the storm: {states}")

    def _must_be_spared(self, cluster: Cluster, model: Model, fact: f.ReplicasScaled) -> None:
        ready = [endpoint.job_id for endpoint in ready_replicas(cluster, model.name)]
        left = [job_id for job_id in ready if job_id not in fact.retire]
        if len(left) < len(ready) and len(left) < model.replicas:
            self.fail(f"{model.name} asked for {model.replicas} ready replicas and is left with {left} of {ready} by {fact}")


def _waits_for_jobs(cluster: Cluster, model: Model) -> bool:
    queued = any(cluster.jobs[job_id].state == job_life.QUEUED for job_id in model.jobs)
    return queued and any(job.state in job_life.ON_NODES for job in cluster.jobs.values() if job.spec.serve is None)
