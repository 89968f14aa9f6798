"""Every job ends within a bounded time after the last fault.

None of its processes is alive then, and no resources are held for it.
"""

from libs.common.state.cluster import live_jobs
from tests.sim.checkers.checker import Checker


class EveryJobEnds(Checker):
    def finished(self) -> None:
        cluster = self.world.reference
        waiting = [
            f"{job.job_id} {job.state} (attempt {job.attempt}, {job.members})"
            for job in live_jobs(cluster)
        ]
        if waiting:
            self.fail(
                f"{len(waiting)} jobs have not ended {self.world.loop.now:.1f} s on: {waiting[0]}"
            )
        for running in self.world.truth.living():
            self.fail(
                f"{running.job_id} attempt {running.attempt} still lives on {running.node_id}"
            )
        for view in cluster.gpus.values():
            if view.holds:
                self.fail(f"{view.gpu.uuid} is still held by {view.holds}")
        for tenant in cluster.tenants.values():
            if tenant.held_share or tenant.waiting:
                self.fail(
                    f"{tenant.tenant} still holds {tenant.held_share}, {tenant.waiting} waiting"
                )
