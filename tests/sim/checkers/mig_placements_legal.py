"""All jobs on one device at one time are isolated in the same way.

MIG instances begin where the card allows them and share no slice.

A job that begins on an instance finds it there. Devices of a lying node are left out: it harms its
own devices only.
"""

from libs.common.devices import mig
from libs.common.model import MIG, GpuHold
from tests.sim.checkers.checker import Checker
from tests.sim.machine import CARD
from tests.sim.truth import Running


class MigPlacementsLegal(Checker):
    def began(self, running: Running) -> None:
        if running.node_id in self.world.lying:
            return
        for uuid in (hold.uuid for hold in running.gpus):
            there = [
                hold
                for each, _ in self.world.truth.by_gpu[uuid]
                for hold in each.gpus
                if hold.uuid == uuid
            ]
            if len({hold.isolation for hold in there}) > 1:
                self.fail(
                    f"{uuid} is shared in several ways: "
                    f"{', '.join(hold.isolation or 'not at all' for hold in there)}"
                )
            self._look_at([hold for hold in there if hold.isolation == MIG])
        instances = self.world.machines[running.node_id].instances
        for hold in (hold for hold in running.gpus if hold.isolation == MIG):
            if hold.mig_slices not in [each.slices for each in instances[hold.uuid].values()]:
                self.fail(
                    f"{running.job_id} begins on {hold.mig_profile} of {hold.uuid}, of which "
                    f"there is none at {hold.mig_slices:#010b}"
                )

    def _look_at(self, instances: list[GpuHold]) -> None:
        used = 0
        for hold in instances:
            if hold.mig_slices not in mig.masks(CARD, hold.mig_profile) or used & hold.mig_slices:
                self.fail(
                    f"{hold.uuid}: {hold.mig_profile} may not begin at slices "
                    f"{hold.mig_slices:#010b} beside {used:#010b}"
                )
            used |= hold.mig_slices
