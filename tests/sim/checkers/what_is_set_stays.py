"""What operators want a device to be told it is told, and what lasts is there at the end, whatever
became of agents and machines.
"""

from tests.sim.checkers.checker import Checker


class WhatIsSetStays(Checker):
    def finished(self) -> None:
        left = self.world.controls_left()
        if left:
            self.fail(", ".join(left))
