"""A working device stays with its node when another node registers it too."""

from __future__ import annotations

from libs.common import facts as f
from libs.common.change import Change, Stamp
from libs.common.facts import AnyFact, Commit, Unknown
from libs.common.state.cluster import Cluster
from tests.sim.checkers.checker import Checker


class DevicesStayWithTheirNode(Checker):
    owners: dict[str, str]

    def before(
        self, cluster: Cluster, fact: AnyFact | Unknown, stamp: Stamp, commit: Commit
    ) -> None:
        if isinstance(fact, f.NodeRegistered):
            self.owners = {
                uuid: view.node_id
                for uuid, view in cluster.gpus.items()
                if view.present and cluster.nodes[view.node_id].usable
            }

    def after(
        self,
        cluster: Cluster,
        fact: AnyFact | Unknown,
        stamp: Stamp,
        commit: Commit,
        change: Change,
    ) -> None:
        if not isinstance(fact, f.NodeRegistered):
            return
        for uuid, owner in self.owners.items():
            if owner != fact.node_id and cluster.gpus[uuid].node_id != owner:
                self.fail(
                    f"{uuid} of {owner} went to {cluster.gpus[uuid].node_id}, which has "
                    "registered it too"
                )
