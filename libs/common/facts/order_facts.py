"""Facts of the gateways about the order of the queue: queues, and what users and operators change
of a job that waits.

Pure; part of the union in `facts.py`.
"""

from libs.common.facts.fact import Fact
from libs.common.model import JobId


class QueueSet(Fact, frozen=True, tag="queue.set"):
    """A queue is there from now on, or is another: its policy, its part where queues compete
    (`weight`), and how many seconds of waiting make up for one step of priority (`ageing_s`, 0:
    never).

    A policy that the scheduler does not know is its own setting. `backfill`: whether those that do
    not delay it may pass its first job; None: in every queue but one of policy fifo.
    `time_slice_s`: how long those that take turns run before they make room for each other (0: they
    do not).
    """

    queue: str
    policy: str
    weight: int = 100
    ageing_s: int = 0
    user: str = ""
    backfill: bool | None = None
    time_slice_s: int = 0


class JobUpdated(Fact, frozen=True, tag="job.updated"):
    """What is not None is so from now on.

    `held`: it is not placed until it is released; a running attempt goes on. A time limit counts
    for the attempts that begin later.
    """

    job_id: JobId
    priority: int | None = None
    time_limit_s: int | None = None
    held: bool | None = None
    user: str = ""


class RequeueRequested(Fact, frozen=True, tag="requeue.requested"):
    """This attempt is to end, and the job to wait for its next one; it uses up none of
    its retries.
    """

    job_id: JobId
    attempt: int
    user: str = ""
