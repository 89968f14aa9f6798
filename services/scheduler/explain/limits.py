"""A higher limit for the job's tenant, as a change.

Pure.
"""

from collections.abc import Iterator
from typing import Final

from libs.common import facts as f
from libs.common.model import GPU_HOUR_SHARE_MS, WHOLE_GPU
from libs.common.quantities import counted
from libs.common.state.cluster import Job, tenant_of
from libs.common.state.tenant import Tenant
from services.scheduler.explain.change import Change
from services.scheduler.placement.resource_request import request_of
from services.scheduler.queueing.limits import (
    hours_left,
    is_spent,
    over_budget,
    over_pools,
    pools_taken,
    used_share_ms,
)
from services.scheduler.queueing.shape import hours_asked, shape_of
from services.scheduler.state.state import State

MIB: Final = 1 << 20
_FIELDS: Final = tuple(name for name in f.TenantSet.__struct_fields__ if name != "user")


def raised(state: State, job: Job) -> Iterator[Change]:
    """Raise the tenant's GPUs in use, its memory pools or its budget.

    The tenant's other waiting jobs use up a higher limit too, so a limit for all of them is tried
    as well.
    """
    tenant = tenant_of(state.cluster, job.tenant)
    missing = (
        hours_asked(shape_of(job)) - hours_left(state, tenant)
        if over_budget(state, shape_of(job))
        else 0
    )
    if is_spent(state, tenant) or missing:
        hours = max(tenant.gpu_hours, used_share_ms(state, tenant) // GPU_HOUR_SHARE_MS) + max(
            1, -(-missing // GPU_HOUR_SHARE_MS)
        )
        what = (
            f"raise the budget of tenant {job.tenant} to {hours} GPU hours (an administrator: "
            f"muster tenant set {job.tenant} --gpu-hours {hours})"
        )
        yield Change(what, (_set(tenant, gpu_hours=hours),), job.job_id, job.spec)
    elif over_pools(state, shape_of(job)):
        request = request_of(job.spec)
        least = pools_taken(state, tenant) + request.nodes * request.pools
        mib = -(-least // MIB)
        what = (
            f"raise the limit of tenant {job.tenant} to {mib} MiB of memory pools (an "
            f"administrator: muster tenant set {job.tenant} --pool {mib}MiB)"
        )
        yield Change(what, (_set(tenant, max_pool_bytes=mib * MIB),), job.job_id, job.spec)
    elif tenant.max_gpu_share:
        others = [
            other
            for name in state.queue.waiting
            if (other := state.cluster.jobs[name]).tenant == job.tenant and other is not job
        ]
        alone = tenant.held_share + state.reserved_share[job.tenant] + _requested_share(job)
        for share in dict.fromkeys(
            (_in_whole_gpus(alone), _in_whole_gpus(alone + sum(map(_requested_share, others))))
        ):
            if share > tenant.max_gpu_share:
                most = share // WHOLE_GPU
                what = (
                    f"raise the limit of tenant {job.tenant} to {counted(most, 'GPU')} (an "
                    f"administrator: muster tenant set {job.tenant} --gpus {most})"
                )
                yield Change(what, (_set(tenant, max_gpu_share=share),), job.job_id, job.spec)


def _requested_share(job: Job) -> int:
    """Return the job's request in hundredths of a GPU; the most that it can be, if it depends on
    the card.
    """
    request = request_of(job.spec)
    return request.total_share or request.nodes * request.gpus * WHOLE_GPU


def _in_whole_gpus(share: int) -> int:
    """Round up to whole GPUs, because limits are set in these."""
    return -(-share // WHOLE_GPU) * WHOLE_GPU


def _set(tenant: Tenant, **limits: int) -> f.TenantSet:
    return f.TenantSet(**{name: getattr(tenant, name) for name in _FIELDS} | limits)
