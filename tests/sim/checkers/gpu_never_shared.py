"""Living processes never hold more than one whole of a device, whatever the log or a ledger says.

Devices of a lying node are left out: it harms its own devices only.
"""

from libs.common.model import WHOLE_GPU
from tests.sim.checkers.checker import Checker
from tests.sim.truth import Running


class GpuNeverShared(Checker):
    def began(self, running: Running) -> None:
        if running.node_id in self.world.lying:
            return
        for hold in running.gpus:
            users = self.world.truth.by_gpu[hold.uuid]
            total = sum(share for _, share in users)
            if total > WHOLE_GPU:
                names = ", ".join(
                    f"{other.job_id}.{other.attempt} ({share})" for other, share in users
                )
                self.fail(f"{hold.uuid} is used to {total} hundredths by {names}")
