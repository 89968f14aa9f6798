"""How an attempt goes on whose members are all over: the job ends, or waits in line with the next
attempt.

Pure. Only what is the job's own doing counts as one of its retries.
"""

from typing import Final

from msgspec.structs import replace

from libs.common import reasons
from libs.common.facts import JobClosed, JobRequeued
from libs.common.life import job_life
from libs.common.state.cluster import Job, MemberView
from libs.common.state.ordering import SECOND_NS

# A job that its machines end this often is failed: it would go round for ever.
ATTEMPTS_MAX: Final = 100
# A job that nodes refuse this often is failed, with the last refusal's reason.
REFUSALS_MAX: Final = 10
# The job waits so long after its first refusal, after each further one twice as long, at most so
# long.
BACK_OFF_NS: Final = SECOND_NS
BACK_OFF_DOUBLINGS_MAX: Final = 6
# A node that refused it is excluded for so many times that wait: other nodes are tried first.
EXCLUDED_WAITS: Final = 4
# An attempt that ended by its machine's fault is tried again at once so often; then it waits too.
AT_ONCE_MAX: Final = 3
# Those ends by the machine's fault that may come at once. The others take a lease or a start limit.
SUDDEN: Final = (reasons.SUPERVISOR_LOST, reasons.GPU_FAULT, reasons.MPS_LOST)
# How an allocation ends well: stopped for this, it ended as that.
GIVEN_BACK: Final = {reasons.EXPIRED: reasons.EXPIRED, reasons.CANCELLED: reasons.RELEASED}


def settled(job: Job, wall_ns: int) -> JobClosed | JobRequeued:
    """Return the fact that ends an attempt after all its members ended, at `wall_ns`.

    A replica that was asked to end was cancelled, whatever its exit code.
    """
    members = sorted(job.members.values(), key=lambda member: member.rank)
    reason = _reason(job, members)
    code = _exit_code(members)
    if job.stop_reason == reasons.REQUEUED and job.cancel is None and _tries(job) < ATTEMPTS_MAX:
        return JobRequeued(
            job_id=job.job_id, attempt=job.attempt, reason=reasons.REQUEUED, counted=False
        )
    if job.spec.allocation is not None and job.stop_reason in GIVEN_BACK:
        ended = GIVEN_BACK[job.stop_reason]
        return JobClosed(
            job_id=job.job_id, attempt=job.attempt, outcome=job_life.COMPLETED, reason=ended
        )
    if job.stop_reason in reasons.GOES_ON and job.cancel is None and not _was_done(members):
        return JobRequeued(
            job_id=job.job_id, attempt=job.attempt, reason=job.stop_reason, counted=False
        )
    if reason == "" and (job.cancel is None or job.spec.serve is None):
        return JobClosed(
            job_id=job.job_id, attempt=job.attempt, outcome=job_life.COMPLETED, exit_code=0
        )
    if reason == reasons.CANCELLED or job.cancel is not None:
        return JobClosed(
            job_id=job.job_id,
            attempt=job.attempt,
            outcome=job_life.CANCELLED,
            reason=reasons.CANCELLED,
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
    """The next attempt waits, twice as long each time, so that no job begins attempt after attempt
    as fast as machines can end them.
    """
    again = JobRequeued(job_id=job.job_id, attempt=job.attempt, reason=reason, counted=counted)
    wait_ns = back_off_ns(job.refusals.count) if reason == reasons.REFUSED else 0
    if reason in SUDDEN and _tries(job) > AT_ONCE_MAX:
        wait_ns = back_off_ns(_tries(job) - AT_ONCE_MAX - 1)
    if not wait_ns:
        return again
    excluded_until_ns = wall_ns + EXCLUDED_WAITS * wait_ns if reason == reasons.REFUSED else 0
    return replace(again, not_before_ns=wall_ns + wait_ns, excluded_until_ns=excluded_until_ns)


def back_off_ns(before: int) -> int:
    """Return how long a job waits after this many waits."""
    return BACK_OFF_NS << min(before, BACK_OFF_DOUBLINGS_MAX)


def _reason(job: Job, members: list[MemberView]) -> str:
    """Why the attempt did not succeed, in one word; empty when every member exited with 0.

    A member whose gang lost another one to its machine waits for that one in vain: it hung for no
    reason of its own.
    """
    lost = any(member.reason in reasons.BY_THE_MACHINE for member in members)
    for member in members:
        if member.reason in reasons.BY_THE_AGENT and not (lost and member.reason == reasons.HUNG):
            return member.reason
    if all(member.exit_code == 0 for member in members):
        return ""
    if job.stop_reason not in ("", "gang_hurt"):
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
        "signalled"
        if any(member.signal and member.reason != reasons.STOPPED for member in members)
        else "failed"
    )


def _was_done(members: list[MemberView]) -> bool:
    """It had ended well before it heard that it was to end."""
    return all(member.exit_code == 0 and member.reason != reasons.STOPPED for member in members)


def _tries(job: Job) -> int:
    """Its attempts, but those that the scheduler ended for others' sake, or for more nodes."""
    return job.attempt - job.preemption.times - job.preemption.grown


def _exit_code(members: list[MemberView]) -> int | None:
    """What a shell would show: of the member that ended the gang rather than of those that were
    stopped for it.
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
    """A replica only where it was refused (its port may be taken there): else its model makes
    another, later after each crash.
    """
    if _tries(job) >= ATTEMPTS_MAX or reason == reasons.TIME_LIMIT:
        return False
    if reason == reasons.REFUSED:
        return job.refusals.count + 1 < REFUSALS_MAX
    if job.spec.serve is not None:
        return False
    if counted:
        return job.retries_used < job.spec.retries
    return job.spec.requeue or reason == reasons.START_TIMEOUT
