"""Never more memory of a device, or of a host, exists for jobs than it has, and never more for one
attempt than its pool. A placement gives each pool its room.

It is counted apart from the books of the broker that is tested.
"""

from collections import Counter

from libs.common.change import Change, Stamp
from libs.common.facts import AnyFact, Commit, JobPlaced, Unknown
from libs.common.model import WHOLE_GPU, job_of
from libs.common.state.cluster import Cluster
from services.node_agent.memory.grants import HOST
from tests.sim.checkers.checker import Checker


class MemoryIsNeverGrantedTwice(Checker):
    def after(
        self,
        cluster: Cluster,
        fact: AnyFact | Unknown,
        stamp: Stamp,
        commit: Commit,
        change: Change,
    ) -> None:
        if isinstance(fact, JobPlaced):
            self._check_room(cluster, fact)
        for machine in self.world.machines.values():
            if machine.node_id in self.world.lying:
                continue
            total: Counter[int] = Counter()
            of: Counter[tuple[str, int]] = Counter()
            for broker in machine.brokers:
                for key, device, size in broker.memory.values():
                    total[device] += size
                    of[key, device] += size
            self._check(cluster, machine.node_id, total, machine.brokers[-1].capacity)
            self._check_pools(cluster, of)

    def _check_room(self, cluster: Cluster, fact: JobPlaced) -> None:
        pool = cluster.jobs[fact.job_id].spec.pool_bytes
        for hold in [hold for member in fact.members for hold in member.gpus if pool]:
            part = cluster.gpus[hold.uuid].gpu.memory_bytes * hold.share // WHOLE_GPU
            if pool > part:
                self.fail(f"{fact.job_id} has a pool of {pool} bytes in {part} of {hold.uuid}")

    def _check(
        self, cluster: Cluster, node_id: str, total: Counter[int], capacity: dict[int, int]
    ) -> None:
        for device, size in total.items():
            if size > capacity[device]:
                what = f"device {device} of {node_id} has {capacity[device]} bytes"
                self.fail(f"{what}, and {size} are granted")

    def _check_pools(self, cluster: Cluster, of: Counter[tuple[str, int]]) -> None:
        for (key, device), size in of.items():
            job = cluster.jobs.get(job_of(key))
            if job is None:
                continue
            pool = job.spec.host_pool_bytes if device == HOST else job.spec.pool_bytes
            if size > pool:
                self.fail(f"{key} has {size} bytes of device {device}, and its pool is {pool}")
