"""Device controls that operators set are applied, and lasting ones are in force at the end.

This holds whatever happened to agents and machines.
"""

from tests.sim.checkers.checker import Checker


class DeviceControlsStaySet(Checker):
    def finished(self) -> None:
        left = self.world.controls_left()
        if left:
            self.fail(", ".join(left))
