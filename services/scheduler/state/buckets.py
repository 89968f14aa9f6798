"""Which rule of `decide.py` has to act on a job, if any: every job is in at most one bucket.

Pure.
"""

from typing import Final

from libs.common.life import job_life
from libs.common.state.cluster import Job, all_over, is_draining
from libs.common.state.ordering import SECOND_NS
from services.scheduler.preemption.preemptible import has_saved, is_saving

ENQUEUE: Final = "enqueue"
WITHDRAW: Final = "withdraw"
WAIT: Final = "wait"
STOP: Final = "stop"
SETTLE: Final = "settle"
EXPIRE: Final = "expire"


def bucket_for(job: Job, wall_ns: int) -> str:
    """The rule that has to act on this job, if any."""
    match job.state:
        case job_life.PENDING:
            return ENQUEUE if job.admitted else ""
        case job_life.QUEUED:
            return _of_waiting(job, wall_ns)
        case job_life.BEGUN:
            return SETTLE if all_over(job) else ""
        case job_life.PLACED | job_life.RUNNING | job_life.RELEASING:
            if all_over(job):
                return SETTLE
            return STOP if wants_stop(job, wall_ns) else EXPIRE if 0 < due_ns(job) < wall_ns else ""
        case _:
            return ""


def _of_waiting(job: Job, wall_ns: int) -> str:
    """Return the bucket of a waiting job.

    No rule works on a job that is held, waits for another job or after a refusal, or is an array
    that waits for its elements. A job with reserved devices is not in line.
    """
    if job.cancel is not None or job.order.in_vain:
        return WITHDRAW if all_over(job) else ""
    if job.order.held or job.order.waits or job.preemption.reserved or not job.has_room:
        return ""
    return "" if job.refusals.waits(wall_ns) else WAIT


def wants_stop(job: Job, wall_ns: int) -> bool:
    """A cancel that was not ordered yet (or a shorter one), a requeue, a gang of which one member
    ended badly, work that is saved.

    A replica that is to end finishes its answers first.
    """
    if job.state == job_life.RELEASING or is_draining(job, wall_ns):
        return False
    if is_saving(job) and has_saved(job):
        return True
    if wants_cancel(job):
        return True
    return not job.stop_reason and (is_hurt(job) or job.order.requeue == job.attempt)


def wants_cancel(job: Job) -> bool:
    """A cancel was not ordered yet, or gives less time than the job has."""
    return job.cancel is not None and (
        not job.stop_reason or job.cancel.grace_s * 1_000 < job.stop_grace_ms
    )


def due_ns(job: Job) -> int:
    """When an allocation is to be warned, and once it was, when it is over; 0: never."""
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
    """Return when to check the job again although no fact touched it: it is due, or its wait after
    a refusal ends; 0: never.
    """
    if job.state == job_life.QUEUED:
        return job.refusals.changes_ns(wall_ns)
    due = due_ns(job)
    return due if due >= max(1, wall_ns) else 0


def is_warned(job: Job) -> bool:
    return job.warned_ns >= job.expires_ns


def is_hurt(job: Job) -> bool:
    """One member ended in another way than by exit code 0: the rest of the gang cannot go on."""
    return any(
        member.state in job_life.MEMBER_ENDED and member.exit_code != 0
        for member in job.members.values()
    )


def waits_to_start(job: Job) -> bool:
    """A member has not begun, and nothing stops the attempt yet."""
    if job.state not in (job_life.PLACED, job_life.RUNNING) or job.stop_reason:
        return False
    return any(member.state == job_life.PLACED for member in job.members.values())
