"""An attempt that ignores the lease is closed only when each of its members has ended.

A member has ended when its node says so, when the node starts again without it, or when an operator
declares the node dead. After that no process of the attempt is alive.

A lying node may report that a living process has ended.
"""

from libs.common.change import Stamp
from libs.common.facts import AnyFact, Commit, JobClosed, JobRequeued, Unknown
from libs.common.life.job_life import LOST
from libs.common.state.cluster import Cluster, Job, MemberView
from tests.sim.checkers.checker import Checker


class ContinueWaitsForItsNode(Checker):
    def before(
        self, cluster: Cluster, fact: AnyFact | Unknown, stamp: Stamp, commit: Commit
    ) -> None:
        job = cluster.jobs.get(fact.job_id) if isinstance(fact, JobClosed | JobRequeued) else None
        if job is None or job.spec.on_control_loss != "continue":
            return
        for member in job.members.values():
            if member.node_id not in self.world.lying:
                self._check(cluster, job, member)
        for running in self.world.truth.by_job.get(job.job_id, ()):
            if running.node_id in self.world.lying:
                continue
            self.fail(
                f"{job.job_id} attempt {job.attempt} is over, and {running.attempt} lives on "
                f"{running.node_id}"
            )

    def _check(self, cluster: Cluster, job: Job, member: MemberView) -> None:
        node = cluster.nodes[member.node_id]
        # Up to `gone` the agent of the same directory has said by beginning again without it,
        # whatever replaced that one later.
        nobody_said = member.accounted > node.gone and (
            member.accounted == node.incarnation or member.accounted <= node.severed
        )
        if member.state == LOST and nobody_said and node.dead < member.incarnation:
            self.fail(
                f"{job.job_id} attempt {job.attempt} is over while its node {node.node_id} "
                "is silent and may still run it"
            )
