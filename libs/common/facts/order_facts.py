"""Facts of the gateways about queues, and about changes of waiting jobs by users and operators.

Pure; part of the union in `facts/__init__.py`.
"""

from libs.common.facts.fact import Fact
from libs.common.model import JobId


class QueueSet(Fact, frozen=True, tag="queue.set"):
    """An operator created a queue, or changed one.

    `weight` is its share where queues compete. `ageing_s` seconds of waiting raise a job's priority
    by one; 0: never. If the scheduler does not know the `policy`, it uses its own setting.
    `backfill`: jobs may run before the first job of the queue if they do not delay it; None: yes,
    unless the policy is fifo. `time_slice_s` is how long preemptible jobs of equal priority run
    before they make room for each other; 0: they do not.
    """

    queue: str
    policy: str
    weight: int = 100
    ageing_s: int = 0
    user: str = ""
    backfill: bool | None = None
    time_slice_s: int = 0


class JobUpdated(Fact, frozen=True, tag="job.updated"):
    """A user or an operator changed a job: every field that is not None.

    `held`: the job is not placed until it is released; a running attempt goes on. A new time limit
    applies to later attempts.
    """

    job_id: JobId
    priority: int | None = None
    time_limit_s: int | None = None
    held: bool | None = None
    user: str = ""


class RequeueRequested(Fact, frozen=True, tag="requeue.requested"):
    """A user asked to stop this attempt and to queue the job again.

    The job keeps all its retries.
    """

    job_id: JobId
    attempt: int
    user: str = ""
