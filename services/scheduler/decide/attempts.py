"""The end of an attempt whose members are all over: the job ends, or waits for its next attempt.

Pure. Only failures that the job itself caused count against its retries.
"""

from typing import Final

from msgspec.structs import replace

from libs.common import reasons
from libs.common.facts import JobClosed, JobRequeued
from libs.common.folds.model_fold import was_steady
from libs.common.life import job_life
from libs.common.state.cluster import Job, MemberView
from libs.common.state.ordering import SECOND_NS

# A job whose attempts machines ended this often fails, so that it does not restart for ever.
ATTEMPTS_MAX: Final = 100
# A job that nodes refuse this often is failed, with the last refusal's reason.
REFUSALS_MAX: Final = 10
# The wait after the first refusal; it doubles with each further one, this many times at most.
BACK_OFF_NS: Final = SECOND_NS
BACK_OFF_DOUBLINGS_MAX: Final = 6
# The refusing node is excluded for this many times that wait, so that other nodes are tried first.
EXCLUDED_WAITS: Final = 4
# Attempts that a machine's fault ended are repeated at once this often; then the job waits before
# each.
AT_ONCE_MAX: Final = 3
# Machine faults that can come at once. The others take a lease or a start limit.
SUDDEN: Final = (reasons.SUPERVISOR_LOST, reasons.GPU_FAULT, reasons.MPS_LOST)
# The reason of a stop that ends an allocation well, and the reason that the job then ends with.
GIVEN_BACK: Final = {
    reasons.EXPIRED: reasons.EXPIRED,
    reasons.CANCELLED: reasons.RELEASED,
    reasons.IDLE_GPUS: reasons.IDLE_GPUS,
}


def settled(job: Job, wall_ns: int) -> JobClosed | JobRequeued:
    """Return the fact that ends an attempt after all its members ended, at `wall_ns`.

    A retired replica counts as cancelled, whatever its exit code, and so does one whose node is to
    be removed: its model has another one.
    """
    members = sorted(job.members.values(), key=lambda member: member.rank)
    reason = _reason(job, members)
    code = _exit_code(members)
    is_asked = job.stop_reason == reasons.REQUEUED or (
        job.stop_reason == reasons.IMAGES_DIFFER and job.spec.requeue
    )
    if is_asked and job.cancel is None and tries(job) < ATTEMPTS_MAX:
        return JobRequeued(
            job_id=job.job_id, attempt=job.attempt, reason=job.stop_reason, counted=False
        )
    if job.spec.allocation is not None and job.stop_reason in GIVEN_BACK:
        ended = GIVEN_BACK[job.stop_reason]
        return JobClosed(
            job_id=job.job_id, attempt=job.attempt, outcome=job_life.COMPLETED, reason=ended
        )
    if job.stop_reason in reasons.GOES_ON and job.cancel is None and _was_stopped(members):
        return JobRequeued(
            job_id=job.job_id, attempt=job.attempt, reason=job.stop_reason, counted=False
        )
    if reason == "" and (job.cancel is None or job.spec.serve is None):
        return JobClosed(
            job_id=job.job_id, attempt=job.attempt, outcome=job_life.COMPLETED, exit_code=0
        )
    is_moved = job.spec.serve is not None and reason == reasons.NODE_REMOVED
    if reason in (reasons.CANCELLED, reasons.IDLE_GPUS) or job.cancel is not None or is_moved:
        return JobClosed(
            job_id=job.job_id,
            attempt=job.attempt,
            outcome=job_life.CANCELLED,
            reason=reason if reason == reasons.IDLE_GPUS else reasons.CANCELLED,
            exit_code=code,
        )
    counted = reason not in (
        *reasons.BY_THE_MACHINE,
        reasons.NODE_REMOVED,
        reasons.REFUSED,
        reasons.START_TIMEOUT,
    )
    if may_try_again(job, reason, counted):
        return _again_later(job, reason, counted, wall_ns)
    if reason == reasons.REFUSED:
        reason = (
            f"{reasons.REFUSED}: "
            f"{next(member.reason for member in members if member.state == job_life.REFUSED)}"
        )
    return JobClosed(
        job_id=job.job_id,
        attempt=job.attempt,
        outcome=job_life.FAILED,
        reason=reason,
        exit_code=code,
    )


def _again_later(job: Job, reason: str, counted: bool, wall_ns: int) -> JobRequeued:
    """Return the fact that queues the next attempt.

    The wait doubles each time, so that a job does not restart as fast as machines can end it.
    """
    again = JobRequeued(job_id=job.job_id, attempt=job.attempt, reason=reason, counted=counted)
    wait_ns = back_off_ns(job.refusals.count) if reason == reasons.REFUSED else 0
    if reason in SUDDEN and tries(job) > AT_ONCE_MAX:
        wait_ns = back_off_ns(tries(job) - AT_ONCE_MAX - 1)
    if not wait_ns:
        return again
    excluded_until_ns = wall_ns + EXCLUDED_WAITS * wait_ns if reason == reasons.REFUSED else 0
    return replace(again, not_before_ns=wall_ns + wait_ns, excluded_until_ns=excluded_until_ns)


def back_off_ns(before: int) -> int:
    """Return how long a job waits after `before` earlier waits."""
    return BACK_OFF_NS << min(before, BACK_OFF_DOUBLINGS_MAX)


def _reason(job: Job, members: list[MemberView]) -> str:
    """Return the reason why the attempt did not complete; empty if it completed.

    An attempt that was stopped has not completed, even if it then exited with 0. If a machine's
    fault ended one member, others may hang waiting for it: their hang is not the reason.
    """
    lost = any(member.reason in reasons.BY_THE_MACHINE for member in members)
    for member in members:
        if member.reason in reasons.BY_THE_AGENT and not (lost and member.reason == reasons.HUNG):
            return member.reason
    if _had_completed(members):
        return ""
    if job.stop_reason not in ("", reasons.GANG_HURT) and _was_stopped(members):
        return job.stop_reason
    for member in members:
        if member.reason in reasons.BY_THE_MACHINE:
            return member.reason
    for reason in (reasons.TIME_LIMIT, reasons.GPU_ERROR):
        if any(member.reason == reason for member in members):
            return reason
    if any(member.state == job_life.REFUSED for member in members):
        return reasons.REFUSED
    return (
        reasons.SIGNALLED
        if any(member.signal and member.reason != reasons.STOPPED for member in members)
        else reasons.FAILED
    )


def _had_completed(members: list[MemberView]) -> bool:
    """Return whether every member exited with 0 and no stop had reached it."""
    return all(member.exit_code == 0 and member.reason == reasons.EXITED for member in members)


def _was_stopped(members: list[MemberView]) -> bool:
    """Return whether a stop or the machine ended a member, or a node did not start it.

    Otherwise the job ended by itself before its stop arrived. An error of a process on its device
    counts as stopped, because it may be a consequence of the stop: other processes have just ended.
    """
    ends = (reasons.STOPPED, reasons.NOT_STARTED, reasons.GPU_ERROR, *reasons.BY_THE_MACHINE)
    return any(member.state == job_life.REFUSED or member.reason in ends for member in members)


def tries(job: Job) -> int:
    """Return the number of attempts, without those that ended for other jobs or to get
    more nodes.
    """
    return job.attempt - job.preemption.times - job.preemption.grown


def _exit_code(members: list[MemberView]) -> int | None:
    """Return the exit code that a shell would show: that of the member that ended the gang, not of
    members that were stopped because of it.
    """
    bad = [
        member
        for member in members
        if member.exit_code != 0 and (member.exit_code is not None or member.signal)
    ]
    own = [member for member in bad if member.reason != reasons.STOPPED] or bad
    if not own:
        return None
    return own[0].exit_code if own[0].exit_code is not None else 128 + own[0].signal


def may_try_again(job: Job, reason: str, counted: bool) -> bool:
    """Return whether the job may have another attempt.

    A replica gets another attempt after a refusal, and after a machine fault before it was ready
    for a minute. The waits are those of other jobs. After any other end its model makes a new
    replica.
    """
    if tries(job) >= ATTEMPTS_MAX or reason == reasons.TIME_LIMIT:
        return False
    if reason == reasons.REFUSED:
        return job.refusals.count + 1 < REFUSALS_MAX
    if job.spec.serve is not None:
        return reason in SUDDEN and not was_steady(job)
    if counted:
        return job.retries_used < job.spec.retries
    return job.spec.requeue or reason == reasons.START_TIMEOUT
