"""No job is placed before the jobs that it depends on have ended as required."""

from libs.common.change import Stamp
from libs.common.facts import AnyFact, Commit, JobPlaced, Unknown
from libs.common.life import job_life
from libs.common.state.cluster import Cluster
from libs.common.state.ordering import AFTER_OK
from tests.sim.checkers.checker import Checker


class DependenciesAreKept(Checker):
    def before(
        self, cluster: Cluster, fact: AnyFact | Unknown, stamp: Stamp, commit: Commit
    ) -> None:
        job = cluster.jobs.get(fact.job_id) if isinstance(fact, JobPlaced) else None
        if job is None:
            return
        for kind, other in job.spec.after:
            before = cluster.jobs.get(other)
            if before is None or before.seq >= job.seq:
                continue  # it was not known when this one was submitted, or came in the same commit
            wanted = (job_life.COMPLETED,) if kind == AFTER_OK else job_life.ENDED
            if before.state not in wanted:
                self.fail(f"{job.job_id} is placed {kind} {other}, which is {before.state}")
