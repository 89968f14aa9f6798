"""At no instant do living processes hold more than one whole of a device, whatever any log or
ledger says.

A node that lies harms its own devices: those are left out.
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
