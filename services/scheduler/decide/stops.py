"""The rules that end attempts: cancel, requeue, expiry, lost gang members, missed start limits.

Pure.
"""

from collections.abc import Sequence
from typing import Final

from libs.common import reasons
from libs.common.facts import (
    AllocationWarned,
    AnyFact,
    JobStopOrdered,
)
from libs.common.model import JobId
from libs.common.state.cluster import Job, is_draining
from libs.common.state.job import has_mixed_images
from services.scheduler.decide.arrays import array_ended
from services.scheduler.decide.attempts import may_try_again, settled
from services.scheduler.decide.batches import batch_settled
from services.scheduler.decide.choices import reserve_devices
from services.scheduler.placement.gang import widest
from services.scheduler.placement.resource_request import request_of
from services.scheduler.preemption.choose import room_again
from services.scheduler.preemption.preemptible import has_saved, is_saving
from services.scheduler.state.buckets import (
    EXPIRE,
    SETTLE,
    STOP,
    is_hurt,
    is_warned,
    wants_cancel,
)
from services.scheduler.state.state import State

NONE: Final[tuple[AnyFact, ...]] = ()


def settle(state: State) -> Sequence[AnyFact]:
    """End or requeue an attempt whose members are all over; an array ends with its elements."""
    job = state.first(SETTLE)
    if job is None:
        return NONE
    if job.elements is not None:
        return (array_ended(job),)
    if job.batch is not None:
        return (batch_settled(state.cluster, job, state.wall_ns),)
    return (settled(job, state.wall_ns),)


def stop(state: State) -> Sequence[AnyFact]:
    """Order the stop of a job that was cancelled, requeued, or has saved its work after a
    preemption.

    A gang of which one member failed is stopped as a whole, and so is one whose members began with
    different images.
    """
    job = state.first(STOP)
    if job is None:
        return NONE
    if job.cancel is not None and wants_cancel(job):
        return (stop_order(job, reasons.CANCELLED, job.cancel.signal, job.cancel.grace_s),)
    if is_saving(job) and has_saved(job):
        return (stop_order(job, job.stop_reason, 15, job.spec.grace_s),)
    if not is_hurt(job):
        reason = reasons.IMAGES_DIFFER if has_mixed_images(job) else reasons.REQUEUED
        return (stop_order(job, reason, 15, job.spec.grace_s),)
    return (stop_order(job, reasons.GANG_HURT, 15, job.spec.grace_s), *_heal(state, job))


def _heal(state: State, job: Job) -> Sequence[AnyFact]:
    """Reserve the surviving devices of a gang that lost a node for its next attempt, and replace
    the lost ones by free devices.

    If too few are free, the gang takes fewer nodes as far as it may; otherwise it waits in the
    queue. So does a gang on lent nodes: it would keep them.
    """
    if job.preemption.lender:
        return NONE
    lost = any(member.reason in reasons.BY_THE_MACHINE for member in job.members.values())
    if not lost or not may_try_again(job, reasons.NODE_LOST, counted=False):
        return NONE
    room = widest(
        job.spec.nodes,
        len(job.members),
        room_again(state, job, request_of(job.spec), state.capacity.everywhere),
    )
    if room is None:
        return NONE
    return (reserve_devices(job, job.attempt + 1, state, room.choice),)


def stop_drained(state: State, drained: Sequence[JobId]) -> Sequence[AnyFact]:
    """Stop a retired replica that has answered all its requests, before its grace ends."""
    for job_id in drained:
        job = state.cluster.jobs.get(job_id)
        if job is not None and job.cancel is not None and is_draining(job, state.wall_ns):
            return (stop_order(job, reasons.CANCELLED, job.cancel.signal, job.cancel.grace_s),)
    return NONE


def stop_unstarted(state: State, now_ns: int) -> Sequence[AnyFact]:
    """Stop a job that did not start within its start limit."""
    job = state.start_limits.overdue(state.cluster.jobs, now_ns)
    return (
        (stop_order(job, reasons.START_TIMEOUT, 15, job.spec.grace_s),) if job is not None else NONE
    )


def expire(state: State) -> Sequence[AnyFact]:
    """Warn of an allocation that ends soon, and stop one whose time is over."""
    job = state.first(EXPIRE)
    if job is None:
        return NONE
    if not is_warned(job):
        return (
            AllocationWarned(job_id=job.job_id, attempt=job.attempt, expires_ns=job.expires_ns),
        )
    return (stop_order(job, reasons.EXPIRED, 15, job.spec.grace_s),)


def stop_unsaved(state: State) -> Sequence[AnyFact]:
    """Stop a preempted job that did not save its work in time."""
    for job_id in state.preemptible.overdue:
        job = state.cluster.jobs[job_id]
        return (stop_order(job, job.stop_reason, 15, job.spec.grace_s),)
    return NONE


def stop_order(job: Job, reason: str, signal: int, grace_s: int) -> JobStopOrdered:
    return JobStopOrdered(
        job_id=job.job_id,
        attempt=job.attempt,
        reason=reason,
        signal=signal,
        grace_ms=grace_s * 1_000,
    )
