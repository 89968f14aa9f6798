"""The earliest deadline that can still be met goes first, then late jobs, then jobs without a
deadline.

A job is late if it would end after its deadline, by its expected duration (`srsf.order_ms`).
That changes with time alone, so the key changes then.
"""

from typing import Final

from libs.common.state.cluster import Job
from libs.common.state.ordering import JobQueue
from services.scheduler.policies.srsf import order_ms

MS: Final = 1_000_000
NEVER: Final = 0


def key(job: Job, queue: JobQueue, now_ns: int) -> tuple[int, int, int]:
    if not job.spec.deadline_ns:
        return (2, 0, job.seq)
    return (1 if now_ns > latest_start_ns(job) else 0, job.spec.deadline_ns, job.seq)


def latest_start_ns(job: Job) -> int:
    """Return the latest start that meets the deadline (wall clock); 0 without a deadline."""
    return max(1, job.spec.deadline_ns - order_ms(job) * MS) if job.spec.deadline_ns else NEVER
