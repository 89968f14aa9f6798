"""The tenant that has least for its weight first: dominant resource fairness, over what a tenant
holds now and what it used lately.

What is held counts as if it had been held for one half-life, so that a tenant that comes back gets
its part at once, and what it used before is paid back within days. Half a GPU more counts as held
(Webster's way to round parts to whole devices): else a tenant with a large weight and one GPU
stands behind all who have none. Of GPUs, CPUs and host memory the one counts of which the tenant
has the largest part of the cluster.
"""

from typing import Final

from libs.common.model import WHOLE_GPU
from libs.common.state.cluster import Job, Tenant
from libs.common.state.ordering import HALF_LIFE_MS, MIB, JobQueue, decayed

# A whole cluster, held for a half-life, at weight 1.
SCALE: Final = 1_000_000_000


def key(job: Job, queue: JobQueue, now_ns: int) -> tuple[int, int, int]:
    """Among a tenant's own jobs: priority, then order of submission."""
    return (0, -job.spec.priority, job.seq)


def rank(tenant: Tenant, sizes: tuple[int, int, int], hour: int) -> int:
    """`sizes` is what the cluster has: hundredths of GPUs, thousandths of CPUs, MiB.

    `hour`: until when use is decayed.
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
