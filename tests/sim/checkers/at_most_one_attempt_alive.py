"""Processes of two attempts of one job never live at the same time, and no member runs twice.

Processes on a lying node are left out: its key may report that they have ended.
"""

from tests.sim.checkers.checker import Checker
from tests.sim.truth import Running


class AtMostOneAttemptAlive(Checker):
    def began(self, running: Running) -> None:
        if running.node_id in self.world.lying:
            return
        alive = self.world.truth.by_job[running.job_id]
        for other in alive:
            if other.node_id in self.world.lying:
                continue
            if other.attempt != running.attempt:
                self.fail(
                    f"{running.job_id}: attempt {running.attempt} began on {running.node_id} "
                    f"while {other.attempt} lives on {other.node_id}"
                )
            elif other.node_id == running.node_id and other is not running:
                self.fail(
                    f"{running.job_id} attempt {running.attempt} runs twice on {running.node_id}"
                )
        times = self.world.truth.began[running.job_id, running.attempt, running.node_id]
        if times > 1 and running.node_id not in self.world.disks_lost:
            self.fail(
                f"{running.job_id} attempt {running.attempt} was started {times} times on "
                f"{running.node_id}"
            )
