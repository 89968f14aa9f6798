"""The tenant with the least use for its weight goes first: dominant resource fairness over what a
tenant holds now and has used lately.

Held resources count as if held for one half-life, so a returning tenant gets its part at once, and
earlier use is paid back within days. Half a GPU is added to what is held (Webster's rounding to
whole devices); otherwise a tenant with a large weight and one GPU would come behind all tenants
without one. Of GPUs, CPUs and host memory, the one counts of which the tenant has the largest part.
"""

from typing import Final

from libs.common.model import WHOLE_GPU
from libs.common.state.cluster import Job, Tenant
from libs.common.state.ordering import HALF_LIFE_MS, MIB, JobQueue, decayed

# The whole cluster, held for a half-life, at weight 1.
SCALE: Final = 1_000_000_000


def key(job: Job, queue: JobQueue, now_ns: int) -> tuple[int, int, int]:
    """Order a tenant's own jobs by priority, then by submission."""
    return (0, -job.spec.priority, job.seq)


def rank(tenant: Tenant, sizes: tuple[int, int, int], hour: int) -> int:
    """Return the tenant's use for its weight.

    `sizes` is the cluster in hundredths of GPUs, thousandths of CPUs, and MiB. Use is decayed up to
    `hour`.
    """
    use = tenant.use
    held = (tenant.held_share + WHOLE_GPU // 2, use.held_cpus_milli, use.held_memory_bytes // MIB)
    lately = [decayed(value, hour - use.hour) for value in (use.gpu, use.cpu, use.memory)]
    parts = [
        (now * HALF_LIFE_MS + before) * SCALE // (size * HALF_LIFE_MS)
        for now, before, size in zip(held, lately, sizes, strict=True)
        if size
    ]
    return max(parts, default=0) // max(1, tenant.weight)
