"""The highest priority first, then the first submitted.

With ageing, `queue.ageing_s` seconds of waiting make up for one step of priority. All jobs age
alike, so their order never changes with time alone: the key is the time at which a job of priority
0 would have had to be submitted to be in the same position.
"""

from libs.common.state.cluster import Job
from libs.common.state.ordering import SECOND_NS, JobQueue


def key(job: Job, queue: JobQueue, now_ns: int) -> tuple[int, int, int]:
    """Order by priority, then by the stream sequence of the submission."""
    if not queue.ageing_s:
        return (0, -job.spec.priority, job.seq)
    return (0, job.submitted_ns - job.spec.priority * queue.ageing_s * SECOND_NS, job.seq)
