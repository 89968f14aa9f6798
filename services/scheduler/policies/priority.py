"""The higher priority first; among equals, first submitted, first placed.

With ageing, `queue.ageing_s` of waiting make up for one step of priority. All jobs age alike, so
who is before whom never changes by time alone: the key is the moment at which a job of priority 0
would have had to come to stand where this one stands.
"""

from libs.common.state.cluster import Job
from libs.common.state.ordering import SECOND_NS, JobQueue


def key(job: Job, queue: JobQueue, now_ns: int) -> tuple[int, int, int]:
    """Priority, then the stream sequence of the submission."""
    if not queue.ageing_s:
        return (0, -job.spec.priority, job.seq)
    return (0, job.submitted_ns - job.spec.priority * queue.ageing_s * SECOND_NS, job.seq)
