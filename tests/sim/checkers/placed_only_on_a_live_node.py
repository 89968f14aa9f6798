"""No job is placed on a node between its loss and its return in the log."""

from libs.common.change import IGNORED, Change, Stamp
from libs.common.facts import AnyFact, Commit, JobPlaced, NodeRegistered, Unknown
from libs.common.state.cluster import Cluster
from tests.sim.checkers.checker import Checker
from tests.sim.world import World


class PlacedOnlyOnALiveNode(Checker):
    """`registered` is the sequence of each node's last registration that counted."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.registered: dict[str, int] = {}

    def before(
        self, cluster: Cluster, fact: AnyFact | Unknown, stamp: Stamp, commit: Commit
    ) -> None:
        if not isinstance(fact, JobPlaced):
            return
        for member in fact.members:
            node = cluster.nodes.get(member.node_id)
            crossed = commit.seen < self.registered.get(member.node_id, 0)
            if node is not None and crossed and node.lost < member.incarnation < node.incarnation:
                # The scheduler had not read the last registration. Only the agent that was replaced
                # could start the job.
                continue
            if node is None or not node.usable or member.incarnation <= node.lost:
                state = node.state if node else "unknown"
                self.fail(
                    f"{fact.job_id} attempt {fact.attempt} is placed on {member.node_id}, "
                    f"which is {state}"
                )

    def after(
        self,
        cluster: Cluster,
        fact: AnyFact | Unknown,
        stamp: Stamp,
        commit: Commit,
        change: Change,
    ) -> None:
        if isinstance(fact, NodeRegistered) and change is not IGNORED:
            self.registered[fact.node_id] = stamp.seq
