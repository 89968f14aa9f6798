"""A job that ended by its time limit ran for that time, whatever a wall clock says.

A boot clock may be wrong by a thousandth.
"""

from libs.common.change import Stamp
from libs.common.facts import AnyFact, Commit, JobFinished, JobStopOrdered, Unknown
from libs.common.state.cluster import Cluster
from tests.sim.checkers.checker import Checker
from tests.sim.truth import Running
from tests.sim.world import World

OFF = 0.998


class TimeLimitNeverEarly(Checker):
    """`began` by (job, attempt, node), in virtual time."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.since: dict[tuple[str, int, str], float] = {}

    def began(self, running: Running) -> None:
        self.since[running.job_id, running.attempt, running.node_id] = running.began_s

    def before(
        self, cluster: Cluster, fact: AnyFact | Unknown, stamp: Stamp, commit: Commit
    ) -> None:
        if not isinstance(fact, JobFinished | JobStopOrdered) or fact.reason != "time_limit":
            return
        limit_s = cluster.jobs[fact.job_id].spec.time_limit_s
        for (job_id, attempt, node_id), began_s in self.since.items():
            concerned = isinstance(fact, JobStopOrdered) or node_id == fact.node_id
            ran_s = self.world.loop.now - began_s
            if (
                (job_id, attempt) == (fact.job_id, fact.attempt)
                and concerned
                and ran_s < limit_s * OFF
            ):
                self.fail(
                    f"{job_id} attempt {attempt} was ended on {node_id} after {ran_s:.3f} s "
                    f"of {limit_s}"
                )
