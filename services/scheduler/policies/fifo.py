"""First submitted, first placed; a requeued job keeps its place.

Such a queue does not backfill, unless it is set so.
"""

from libs.common.state.cluster import Job
from libs.common.state.ordering import JobQueue


def key(job: Job, queue: JobQueue, now_ns: int) -> tuple[int, int, int]:
    """Return the stream sequence of the submission."""
    return (0, 0, job.seq)
