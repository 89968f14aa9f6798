"""A device that was quarantined is back in use soon after nobody has it open any more, whatever happened to its agent meanwhile."""

from libs.common.gpu_life import QUARANTINED
from tests.sim.checkers.checker import Checker
from tests.sim.faults import STORM_S

WITHIN_S = 10.0


class QuarantineEnds(Checker):
    def finished(self) -> None:
        for uuid, view in self.world.reference.gpus.items():
            node = self.world.reference.nodes[view.node_id]
            kept_until = self.world.machines[view.node_id].kept_until.get(uuid, 0.0)
            if view.reason == QUARANTINED and node.usable and self.world.loop.now > max(STORM_S, kept_until) + WITHIN_S:
                self.fail(f"{uuid} is still quarantined ({view.detail}), and free since {kept_until:.1f} s")
