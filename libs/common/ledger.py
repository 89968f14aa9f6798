"""The one ledger of promises: who holds what share of which device.

Pure. Invariant 2 lives here: `can_hold` refuses any promise that would pass a whole device, `hold` and `release` are
the only places that change `GpuView.holds` and a tenant's `held_share`. A release frees only the hold of the same
(job, attempt, GPU); a second one frees nothing.
"""

from collections.abc import Sequence

from libs.common.cluster import Cluster, Job, MemberView, tenant_of
from libs.common.model import WHOLE_GPU, GpuHold, attempt_key


def can_hold(cluster: Cluster, gpus: Sequence[GpuHold]) -> bool:
    """Whether every device is known and has the asked share free, and none is named twice.

    Not which node has it: a device that another node reports since the placement was decided is still promised, and
    given back with the member.
    """
    for wish in gpus:
        view = cluster.gpus.get(wish.uuid)
        if view is None or not 0 < wish.share <= WHOLE_GPU - view.held:
            return False
    return len({wish.uuid for wish in gpus}) == len(gpus)


def hold(cluster: Cluster, job: Job, member: MemberView) -> None:
    """Promise the member's devices to the job's current attempt."""
    key = attempt_key(job.job_id, job.attempt)
    tenant = tenant_of(cluster, job.tenant)
    for wish in member.gpus:
        cluster.gpus[wish.uuid].holds[key] = wish.share
        tenant.held_share += wish.share


def release(cluster: Cluster, job: Job, member: MemberView) -> None:
    """Take back what the member still holds."""
    key = attempt_key(job.job_id, job.attempt)
    tenant = tenant_of(cluster, job.tenant)
    for wish in member.gpus:
        tenant.held_share -= cluster.gpus[wish.uuid].holds.pop(key, 0)
