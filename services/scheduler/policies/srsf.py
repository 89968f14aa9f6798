"""Shortest remaining service first: GPUs times the expected remaining time.

The expected time is the user's estimate, otherwise the average of the tenant's jobs, otherwise the
time limit. A job without any of these goes last.
"""

from typing import Final

from libs.common import element_runs
from libs.common.model import WHOLE_GPU
from libs.common.state.cluster import Job
from libs.common.state.ordering import JobQueue

UNKNOWN: Final = 1 << 62


def key(job: Job, queue: JobQueue, now_ns: int) -> tuple[int, int, int]:
    """Order by hundredths of a GPU times milliseconds, then by submission."""
    spec = job.spec
    expected_ms = order_ms(job)
    if not expected_ms:
        return (0, UNKNOWN, job.seq)
    share = spec.gpu_share if spec.gpus else WHOLE_GPU
    return (
        0,
        max(0, expected_ms * spec.nodes * max(1, spec.gpus) * share - job.order.attained),
        job.seq,
    )


def order_ms(job: Job) -> int:
    """Return the milliseconds by which the job is ordered; 0 if unknown.

    A batch of a short array counts as one of its elements, as the array does. Behind its array, a
    batch would wait while the array begins all others.
    """
    if job.batch is None:
        return expected_of(job)
    spec, count = job.spec, job.batch.count
    return (
        spec.estimate_s * 1_000 // count
        or job.order.usual_ms
        or element_runs.element_limit_s(spec.time_limit_s, count, spec.grace_s) * 1_000
    )


def expected_of(job: Job) -> int:
    """Return the milliseconds that the job is expected to run; 0 if unknown."""
    return job.spec.estimate_s * 1_000 or job.order.usual_ms or job.spec.time_limit_s * 1_000
