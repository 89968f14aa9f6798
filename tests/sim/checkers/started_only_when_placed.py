"""No process begins without a placement of its attempt on its node in the log.

Orders come from acknowledged state only.
"""

from tests.sim.checkers.checker import Checker
from tests.sim.truth import Running


class StartedOnlyWhenPlaced(Checker):
    def began(self, running: Running) -> None:
        if not running.gpus:
            self.fail(
                f"{running.job_id} attempt {running.attempt} began on {running.node_id}, and "
                "no commit places it there"
            )
