"""A quarantined device is back in use soon after no process has it open.

Its agent must be there to check it, and no other job may share the device: while one runs, the
agent cannot tell its processes from the ones that were left.
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
    """`there`: when each node's agent last registered. `released`: each device's last release."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.there: dict[str, float] = {}
        self.released: dict[str, float] = {}

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
        if isinstance(fact, f.JobReleased):
            placed = self.world.placements.get((fact.job_id, fact.attempt))
            for member in placed.members if placed else ():
                if member.node_id == fact.node_id:
                    self.released.update((hold.uuid, self.world.loop.now) for hold in member.gpus)

    def finished(self) -> None:
        for uuid, view in self.world.reference.gpus.items():
            node = self.world.reference.nodes[view.node_id]
            kept_until = self.world.machines[view.node_id].kept_until.get(uuid, 0.0)
            released = self.released.get(uuid, 0.0)
            since = max(STORM_S, kept_until, released, self.there[view.node_id])
            if (
                view.reason == QUARANTINED
                and node.usable
                and self.world.loop.now > since + WITHIN_S
            ):
                self.fail(
                    f"{uuid} is still quarantined ({view.detail}), and free since "
                    f"{kept_until:.1f} s"
                )
