"""The jobs that have devices reserved, and the share and pools that they do not hold yet.

Pure, and derived: a part of `State`.
"""

from collections import Counter

from libs.common.model import JobId, TenantId, attempt_key
from libs.common.state.cluster import Cluster, Job
from services.scheduler.queueing.shape import shape_of
from services.scheduler.state.noted import Kept


class ReservedNotes:
    """The notes on reserved devices.

    `kept` is by job; `share` is the sum by tenant, in hundredths of a GPU, `pools` in bytes.
    """

    def __init__(self) -> None:
        self.kept: dict[JobId, Kept] = {}
        self.share: Counter[TenantId] = Counter()
        self.pools: Counter[TenantId] = Counter()

    def forget(self, job_id: JobId) -> None:
        """Drop the notes about this job, if there are any."""
        old = self.kept.pop(job_id, None)
        if old is not None:
            self._take_back(old)

    def _take_back(self, old: Kept) -> None:
        self.share[old.shape.tenant] -= old.share
        self.pools[old.shape.tenant] -= old.pools

    def note(self, cluster: Cluster, job: Job, wall_ns: int) -> bool:
        """Note that a fact touched this job. Return whether it has devices reserved."""
        if not job.preemption.reserved:
            self.forget(job.job_id)
            return False
        old = self.kept.get(job.job_id)
        if old is not None:
            self._take_back(old)
        own = attempt_key(job.job_id, job.attempt)
        share = sum(
            [
                hold.share
                for member in job.preemption.reserved
                for hold in member.gpus
                if own not in cluster.gpus[hold.uuid].holds
            ]
        )
        without = [
            member
            for member in job.preemption.reserved
            if own not in cluster.nodes[member.node_id].pools
        ]
        pools = len(without) * job.spec.pools_on_node_bytes
        # The nodes that a refused job avoids change with time.
        is_known = old is not None and not job.refusals.excluded
        shape = (
            old.shape
            if old is not None and is_known
            else shape_of(job, job.refusals.avoided(wall_ns))
        )
        self.kept[job.job_id] = Kept(shape.on(len(job.preemption.reserved)), share, pools)
        self.share[job.tenant] += share
        self.pools[job.tenant] += pools
        return True
