"""Probes measure idle nodes: a round is ordered only between idle nodes, each in one pair.

Every test ends, and a probe that an agent refused has no result. The scheduler drains at most one
node or 5 % of them in an hour, only suspects.
"""

from libs.common.change import Stamp
from libs.common.facts import (
    AnyFact,
    Commit,
    FabricRoundClosed,
    FabricRoundOrdered,
    NodeDrained,
    Unknown,
)
from libs.common.state.cluster import Cluster
from tests.sim.checkers.checker import Checker

HOUR_NS = 3_600_000_000_000


class ProbesMeasureIdleNodes(Checker):
    """Only the scheduler places jobs and declares losses, so it cannot have missed them."""

    def before(
        self, cluster: Cluster, fact: AnyFact | Unknown, stamp: Stamp, commit: Commit
    ) -> None:
        if isinstance(fact, FabricRoundOrdered):
            self._round(cluster, fact, commit)
        if isinstance(fact, FabricRoundClosed):
            self._results(cluster, fact)
        if isinstance(fact, NodeDrained):
            self._drain(cluster, fact)

    def _round(self, cluster: Cluster, fact: FabricRoundOrdered, commit: Commit) -> None:
        test = cluster.fabric.tests.get(fact.test)
        nodes = [node_id for pair in fact.pairs for node_id in pair]
        if test is None or len(set(nodes)) < len(nodes) or not set(nodes) <= set(test.nodes):
            self.fail(f"round {fact.number} of {fact.test} has wrong pairs: {fact.pairs}")
        for node_id in nodes:
            node = cluster.nodes[node_id]
            if node.members:
                self.fail(f"{node_id} is to be probed while it runs {', '.join(node.members)}")
            if not node.usable and commit.seen >= node.registered_seq:
                self.fail(f"{node_id} is to be probed although it is {node.state}")

    def _results(self, cluster: Cluster, fact: FabricRoundClosed) -> None:
        test = cluster.fabric.tests.get(fact.test)
        for pair in fact.pairs:
            reports = [test.probes.get(node_id) for node_id in (pair.a, pair.b)] if test else []
            if any(report is not None and report.refused for report in reports):
                self.fail(f"{pair.a} and {pair.b} have a result, and one refused to measure")

    def _drain(self, cluster: Cluster, fact: NodeDrained) -> None:
        view = cluster.fabric.nodes.get(fact.node_id)
        if view is None or not view.reason or not fact.evidence:
            self.fail(f"{fact.node_id} is drained without evidence")
        recent = [at_ns for at_ns, _ in cluster.fabric.drains if at_ns > fact.at_ns - HOUR_NS]
        if len(recent) >= max(1, len(cluster.nodes) // 20):
            self.fail(f"{fact.node_id} is drained, the {len(recent) + 1}. node within an hour")

    def finished(self) -> None:
        fabric = self.world.reference.fabric
        if fabric.tests or fabric.requests:
            self.fail(f"{[*fabric.requests, *fabric.tests]} never end")
