"""The rule of `decide/` that must act on a job: every job is in at most one bucket.

Pure.
"""

from typing import Final

from libs.common import reasons
from libs.common.life import job_life
from libs.common.model import JobId
from libs.common.state.cluster import Job, all_over, is_draining
from libs.common.state.job import has_ended_member, has_mixed_images
from libs.common.state.ordering import SECOND_NS
from services.scheduler.preemption.preemptible import has_saved, is_saving
from services.scheduler.state.swept_heap import SweptHeap

ENQUEUE: Final = "enqueue"
WITHDRAW: Final = "withdraw"
WAIT: Final = "wait"
STOP: Final = "stop"
SETTLE: Final = "settle"
EXPIRE: Final = "expire"


class Buckets:
    """The jobs of each rule as a heap of (submission, job); `of` tells which entries are live."""

    def __init__(self) -> None:
        self.of: dict[JobId, str] = {}
        self.heaps: dict[str, SweptHeap[tuple[int, JobId]]] = {
            name: SweptHeap() for name in (ENQUEUE, WITHDRAW, STOP, SETTLE, EXPIRE)
        }

    def move(self, job_id: JobId, new: str, submitted: int) -> str:
        """Move the job to this bucket, or out of all if it is empty. Return its former bucket."""
        old = self.of.pop(job_id, "")
        if new:
            self.of[job_id] = new
            if new not in (old, WAIT):
                self.heaps[new].add(
                    (submitted, job_id), is_live=lambda entry: self.of.get(entry[1]) == new
                )
        return old

    def first(self, bucket: str) -> JobId | None:
        """Return the job of this bucket that was submitted first."""
        heap = self.heaps[bucket]
        while (entry := heap.first()) is not None:
            if self.of.get(entry[1]) == bucket:
                return entry[1]
            heap.take()
        return None


def bucket_for(job: Job, wall_ns: int) -> str:
    """Return the bucket of a job; empty if no rule must act on it."""
    state = job.state
    if state in (job_life.PLACED, job_life.RUNNING):
        if wants_stop(job, wall_ns):
            return STOP
        return EXPIRE if job.spec.allocation is not None and 0 < due_ns(job) < wall_ns else ""
    if state == job_life.QUEUED:
        return _waiting_bucket(job, wall_ns)
    if state == job_life.PENDING:
        return ENQUEUE if job.admitted else ""
    return SETTLE if state in (job_life.BEGUN, job_life.RELEASING) and all_over(job) else ""


def is_ordinary(job: Job) -> bool:
    """Return whether a job that was just placed is in no bucket until a node reports, whatever the
    time is, and in no index of allocations, replicas or preemptible jobs.
    """
    spec = job.spec
    return (
        job.state == job_life.PLACED
        and job.order.requeue != job.attempt
        and spec.allocation is None
        and spec.serve is None
        and not spec.preemptible
    )


def _waiting_bucket(job: Job, wall_ns: int) -> str:
    """Return the bucket of a waiting job.

    No rule acts on a job that is held, that waits for another job or after a refusal, or on an
    array that waits for its elements. A job with reserved devices is not in the queue.
    """
    if job.cancel is not None or job.order.in_vain:
        return WITHDRAW if all_over(job) else ""
    if job.order.held or job.order.waits or job.preemption.reserved or not job.has_room:
        return ""
    return "" if job.refusals.waits(wall_ns) else WAIT


def wants_stop(job: Job, wall_ns: int) -> bool:
    """Return whether an attempt must be stopped: by a cancel or a requeue that was not ordered yet,
    because its work is saved, because a gang member failed, or because members have different
    images.

    A retired replica finishes its answers first.
    """
    if job.state == job_life.RELEASING or (job.drain_until_ns and is_draining(job, wall_ns)):
        return False
    if job.stop_reason:
        return (is_saving(job) and has_saved(job)) or wants_cancel(job)
    return (
        job.cancel is not None
        or job.order.requeue == job.attempt
        or (has_ended_member(job) and is_hurt(job))
        or (job.pin is not None and has_mixed_images(job))
    )


def wants_cancel(job: Job) -> bool:
    """Return whether a cancel was not ordered yet, or gives less time than the job has."""
    return job.cancel is not None and (
        not job.stop_reason or job.cancel.grace_s * 1_000 < job.stop_grace_ms
    )


def due_ns(job: Job) -> int:
    """Return when to warn of an allocation's end or, after the warning, when it ends;
    0 for never.
    """
    if (
        job.spec.allocation is None
        or job.state not in (job_life.PLACED, job_life.RUNNING)
        or job.stop_reason
    ):
        return 0
    return (
        job.expires_ns
        if is_warned(job)
        else max(1, job.expires_ns - job.spec.allocation.warn_s * SECOND_NS)
    )


def turns_ns(job: Job, wall_ns: int) -> int:
    """Return when to check the job again although no fact touched it; 0 for never.

    That is when an allocation is due, or when a wait after a refusal ends.
    """
    if job.state == job_life.QUEUED:
        return job.refusals.changes_ns(wall_ns)
    due = due_ns(job)
    return due if due >= max(1, wall_ns) else 0


def is_warned(job: Job) -> bool:
    """Return whether the user was warned of the allocation's present end."""
    return job.warned_ns >= job.expires_ns


def is_hurt(job: Job) -> bool:
    """Return whether a member did not complete, so that its gang cannot go on: it ended with
    anything but exit code 0, or was stopped and then exited with 0.
    """
    return any(
        member.state in job_life.MEMBER_ENDED
        and (member.exit_code != 0 or member.reason != reasons.EXITED)
        for member in job.members.values()
    )


def waits_to_start(job: Job) -> bool:
    """Return whether a member has not started and the attempt is not being stopped."""
    if job.state not in (job_life.PLACED, job_life.RUNNING) or job.stop_reason:
        return False
    return any(member.state == job_life.PLACED for member in job.members.values())
