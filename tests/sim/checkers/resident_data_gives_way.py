"""Holds and resident data never exceed a node or a device, and what is not wanted is removed.

A standby takes over at most once for each death of the engine that served.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from libs.common import facts as f
from libs.common.change import IGNORED, Change, Stamp
from libs.common.facts import AnyFact, Commit, Unknown
from libs.common.model import NodeId, attempt_key
from libs.common.state import ledger
from libs.common.state.cluster import Cluster
from tests.sim.checkers.checker import Checker
from tests.sim.residents import unwanted

if TYPE_CHECKING:
    from tests.sim.world import World


class ResidentDataGivesWay(Checker):
    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.promotions: dict[str, int] = {}

    def after(
        self,
        cluster: Cluster,
        fact: AnyFact | Unknown,
        stamp: Stamp,
        commit: Commit,
        change: Change,
    ) -> None:
        if isinstance(fact, f.KeptGranted):
            self._must_fit(cluster, fact.node_id)
        if isinstance(fact, f.JobPlaced):
            for member in fact.members:
                self._must_fit(cluster, member.node_id)
        if isinstance(fact, f.StandbyPromoted) and change is not IGNORED:
            self._must_have_died(fact)

    def _must_fit(self, cluster: Cluster, node_id: NodeId) -> None:
        node = cluster.nodes[node_id]
        free = ledger.free_host_bytes(cluster, node_id)
        if node.kept and free < 0:
            self.fail(f"{node_id} keeps {node.kept}, which is {-free} bytes more than it has left")
        for uuid in node.gpus:
            view = cluster.gpus[uuid]
            if sum(view.kept.values()) > view.gpu.memory_bytes:
                self.fail(f"{uuid} keeps {view.kept}, which is more than it has")

    def _must_have_died(self, fact: f.StandbyPromoted) -> None:
        key = attempt_key(fact.job_id, fact.attempt)
        deaths = self.world.machines[fact.node_id].deaths.get(key, 0)
        before = self.promotions.get(key, 0)
        if not before < fact.number <= deaths:
            self.fail(f"{key}: promotion {fact.number} after {before}, and {deaths} engines died")
        self.promotions[key] = fact.number

    def finished(self) -> None:
        """Compare the memory of the machines with what is wanted at the end."""
        for node_id, key in unwanted(self.world):
            self.fail(f"{node_id} still has {key}, which is not wanted there")
