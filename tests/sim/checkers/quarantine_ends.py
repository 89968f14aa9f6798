"""A device that was quarantined is back in use soon after nobody has it open any more and its agent
is there to see it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from libs.common import facts as f
from libs.common.change import Change, Stamp
from libs.common.facts import AnyFact, Commit, Unknown
from libs.common.life.gpu_life import QUARANTINED
from libs.common.state.cluster import Cluster
from tests.sim.checkers.checker import Checker
from tests.sim.faults import STORM_S

if TYPE_CHECKING:
    from tests.sim.world import World

WITHIN_S = 10.0


class QuarantineEnds(Checker):
    """`there` says since when each node's agent is there."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.there: dict[str, float] = {}

    def after(
        self,
        cluster: Cluster,
        fact: AnyFact | Unknown,
        stamp: Stamp,
        commit: Commit,
        change: Change,
    ) -> None:
        if isinstance(fact, f.NodeRegistered):
            self.there[fact.node_id] = self.world.loop.now

    def finished(self) -> None:
        for uuid, view in self.world.reference.gpus.items():
            node = self.world.reference.nodes[view.node_id]
            kept_until = self.world.machines[view.node_id].kept_until.get(uuid, 0.0)
            since = max(STORM_S, kept_until, self.there[view.node_id])
            if (
                view.reason == QUARANTINED
                and node.usable
                and self.world.loop.now > since + WITHIN_S
            ):
                self.fail(
                    f"{uuid} is still quarantined ({view.detail}), and free since "
                    f"{kept_until:.1f} s"
                )
