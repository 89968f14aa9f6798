"""A node is removed only when no process of a job lives there.

After a removal request that the scheduler has read, the node takes no more work, and in the end it
is removed. A silent node may delay this until it returns or is lost; after a planned stop its lease
is long.
"""

from libs.common.change import Stamp
from libs.common.facts import AnyFact, Commit, JobPlaced, NodeRemovalRequested, NodeRemoved, Unknown
from libs.common.state.cluster import Cluster
from tests.sim.checkers.checker import Checker
from tests.sim.world import World


class RemovedOnlyWhenEmpty(Checker):
    """`asked` is the sequence at which a node's removal stands; a decision that had not seen it may
    still place there.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.asked: dict[str, int] = {}

    def before(
        self, cluster: Cluster, fact: AnyFact | Unknown, stamp: Stamp, commit: Commit
    ) -> None:
        if isinstance(fact, NodeRemovalRequested):
            self.asked.setdefault(fact.node_id, stamp.seq)
        if isinstance(fact, NodeRemoved):
            for running in self.world.truth.living():
                if running.node_id == fact.node_id:
                    self.fail(
                        f"{fact.node_id} is removed while {running.job_id} attempt "
                        f"{running.attempt} lives there"
                    )
        if isinstance(fact, JobPlaced):
            for member in fact.members:
                if commit.seen >= self.asked.get(member.node_id, commit.seen + 1):
                    self.fail(
                        f"{fact.job_id} attempt {fact.attempt} is placed on "
                        f"{member.node_id}, which is to be removed"
                    )

    def finished(self) -> None:
        for member in self.world.reference.memberships.values():
            if member.leaving and not member.removed:
                self.fail(
                    f"{member.node_id} was to be removed and is not, {self.world.loop.now:.1f} s on"
                )
