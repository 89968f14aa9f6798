"""A node is lost only when no process lives on it, except attempts that are not lost with it.

Those ignore the lease, or their node had no lease watchdog. After an operator declared it dead,
no process at all lives there. A node is never lost sooner than a lease and its margin after it
registered or returned. The shorter times count: of the lease profile at that time, or of the
present one.

A lying node may report that a living process has ended.
"""

from typing import Final

from libs.common.change import IGNORED, Change, Stamp
from libs.common.facts import AnyFact, Commit, NodeLost, NodeRegistered, NodeReturned, Unknown
from libs.common.life import job_life
from libs.common.life.node_life import DECLARED_DEAD, UNGUARDED
from libs.common.model import JobId
from libs.common.state.cluster import Cluster
from tests.sim.checkers.checker import Checker
from tests.sim.truth import Running
from tests.sim.world import World

# Boot clocks run a little fast or slow.
CLOCKS_DIFFER: Final = 0.99


class LostOnlyAfterALease(Checker):
    """`since` is the virtual time at which the log took the node's last sign of a beginning, and
    `silence_s` the silence after which a node was lost at that time.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.since: dict[str, float] = {}
        self.silence_s: dict[str, float] = {}

    def after(
        self,
        cluster: Cluster,
        fact: AnyFact | Unknown,
        stamp: Stamp,
        commit: Commit,
        change: Change,
    ) -> None:
        if change is IGNORED:
            return
        now = self.world.loop.now
        if isinstance(fact, NodeRegistered | NodeReturned):
            self.since[fact.node_id] = now
            self.silence_s[fact.node_id] = cluster.timing.silence_ms / 1e3
        if not isinstance(fact, NodeLost):
            return
        for running in self.world.truth.living():
            spared = fact.reason == UNGUARDED or (
                fact.reason != DECLARED_DEAD and _holds(cluster, running)
            )
            if (
                running.node_id == fact.node_id
                and not spared
                and fact.node_id not in self.world.lying
            ):
                self.fail(
                    f"{fact.node_id} is lost while {running.job_id} attempt "
                    f"{running.attempt} lives there"
                )
        if fact.reason == DECLARED_DEAD:
            return
        began_s = self.since[fact.node_id]
        silence_s = min(self.silence_s[fact.node_id], cluster.timing.silence_ms / 1e3)
        if (
            cluster.nodes[fact.node_id].incarnation == fact.incarnation
            and now - began_s < silence_s * CLOCKS_DIFFER
        ):
            self.fail(
                f"{fact.node_id} is lost {now - began_s:.3f} s after incarnation "
                f"{fact.incarnation} began"
            )


def _holds(cluster: Cluster, running: Running) -> bool:
    """Return whether the attempt still holds what it had on its node: it was not lost with it."""
    job = cluster.jobs.get(JobId(running.job_id))
    member = job.members.get(running.node_id) if job is not None else None
    return (
        job is not None
        and job.attempt == running.attempt
        and member is not None
        and member.state not in job_life.MEMBER_OVER
    )
