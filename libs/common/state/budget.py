"""The remaining GPU hours of a tenant's budget. Pure.

Use is charged when an attempt has ended. The end of an allocation is known, so all of it counts
from its placement on. The end of a job is not known, so the job counts when it has ended. Test:
tests/unit/test_budgets.py.
"""

from collections.abc import Iterable

from libs.common.model import GPU_HOUR_SHARE_MS
from libs.common.state.cluster import Cluster, Job
from libs.common.state.tenant import Tenant


def left_share_ms(cluster: Cluster, tenant: Tenant, held: Iterable[Job]) -> int:
    """Return what is left, in hundredths of a GPU times milliseconds; below 0: overdrawn.

    `held` are the allocations on nodes, of this tenant or of all.
    """
    ended = sum(
        charge.share_ms for charge in cluster.uncharged.values() if charge.tenant == tenant.tenant
    )
    lasting = sum(
        share_of(job) * max(0, job.expires_ns - job.placed_ns) // 1_000_000
        for job in held
        if job.tenant == tenant.tenant
    )
    return tenant.gpu_hours * GPU_HOUR_SHARE_MS - tenant.budget_share_ms - ended - lasting


def share_of(job: Job) -> int:
    """Return the share that the job holds, in hundredths of a GPU."""
    return sum(hold.share for member in job.members.values() for hold in member.gpus)


def hours(share_ms: int) -> str:
    """Return the GPU hours as text."""
    return f"{max(0, share_ms) / GPU_HOUR_SHARE_MS:.1f}"
