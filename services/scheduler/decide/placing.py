"""The rules about waiting jobs: withdraw, enqueue, place, and make room by preemption.

Pure.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from functools import partial
from typing import Final

import msgspec

from libs.common import reasons
from libs.common.facts import (
    AnyFact,
    JobClosed,
    JobQueued,
)
from libs.common.life import job_life
from libs.common.model import JobId, TenantId
from libs.common.quantities import counted
from libs.common.state.cluster import Job
from services.scheduler.decide.arrays import next_element
from services.scheduler.decide.choices import NO_JOB, placement, reserve_devices
from services.scheduler.decide.elastic import with_more_nodes
from services.scheduler.decide.preflight import (
    given_up,
    is_under_way,
    placed_or_measured,
    suspects_for,
)
from services.scheduler.models.spread import choose_spread
from services.scheduler.placement.choose import NO_PLACEMENT, Choice, choose_for, possible
from services.scheduler.placement.resource_request import request_of
from services.scheduler.placement.sharing_domains import sharing_domain_of
from services.scheduler.preemption.choose import Room, preempted, room_for
from services.scheduler.queueing.backfill import (
    SCAN_MAX,
    BackfillPass,
    borrowers_behind,
    leaves_tenant_room,
)
from services.scheduler.queueing.limits import is_possible, over_limit, passes_limit
from services.scheduler.queueing.queue import RECHECK_IDLE_MAX
from services.scheduler.queueing.queue_order import candidates, in_order
from services.scheduler.queueing.shape import Owner, Shape
from services.scheduler.reservations.reservations import closed_to, is_closed_to, is_early, pass_of
from services.scheduler.reservations.reserved import is_among_strangers, is_broken, is_free
from services.scheduler.state.buckets import (
    ENQUEUE,
    WITHDRAW,
)
from services.scheduler.state.state import State

NONE: Final[tuple[AnyFact, ...]] = ()
# A pass has so many parts, and one tenant may use one of them.
PARTS: Final = 4
# Kinds of jobs of a tenant that are examined even if other tenants have used up the pass.
PART_LEAST: Final = 4


def withdraw(state: State) -> Sequence[AnyFact]:
    """Close a waiting job that was cancelled, or whose dependency failed."""
    job = state.first(WITHDRAW)
    if job is None:
        return NONE
    reason = reasons.DEPENDENCY_FAILED if job.cancel is None else reasons.CANCELLED
    return (
        JobClosed(
            job_id=job.job_id, attempt=job.attempt, outcome=job_life.CANCELLED, reason=reason
        ),
    )


def enqueue(state: State) -> Sequence[AnyFact]:
    """Queue an admitted job, or reject one that asked for that if this cluster could
    never hold it.
    """
    job = state.first(ENQUEUE)
    if job is None:
        return NONE
    queued = JobQueued(job_id=job.job_id)
    if job.spec.reject_if_impossible and not possible(state.capacity, request_of(job.spec)):
        reason = (
            f"impossible: this cluster has not {counted(job.spec.nodes, 'node')} with "
            f"{counted(job.spec.gpus, 'GPU')} each"
        )
        return (
            queued,
            JobClosed(
                job_id=job.job_id, attempt=job.attempt, outcome=job_life.REJECTED, reason=reason
            ),
        )
    return (queued,)


class Examined(msgspec.Struct):
    """The kinds of jobs that a pass has examined in vain, by tenant.

    A tenant with many kinds that do not fit must not use up the pass of the others. When its part
    is used up, it is in `full`, and no more of its jobs are examined. A part is a quarter of the
    pass, or an equal part if that is more. When the whole pass is used up, further kinds are
    examined only of tenants of which fewer than PART_LEAST were examined. `tenants` are the tenants
    with waiting jobs, `counts` what was examined of each.
    """

    tenants: Collection[TenantId]
    full: set[TenantId] = set()
    total: int = 0
    counts: dict[TenantId, int] = {}

    def note(self, tenant: TenantId) -> bool:
        """Count a kind of job; return whether no more may be examined."""
        self.total += 1
        count = self.counts[tenant] = self.counts.get(tenant, 0) + 1
        if self.total == SCAN_MAX:
            self.full.update(each for each, seen in self.counts.items() if seen >= PART_LEAST)
        part = max(SCAN_MAX // PARTS, SCAN_MAX // len(self.tenants))
        if count >= (part if self.total < SCAN_MAX else PART_LEAST):
            self.full.add(tenant)
        return self.total >= 2 * SCAN_MAX


def place(state: State) -> Sequence[AnyFact]:
    """Place the first job in order that fits, without delaying the jobs before it."""
    versions = state.versions
    if state.nothing_fits == versions or not state.queue.waiting:
        return NONE
    passes: dict[str, BackfillPass] = defaultdict(BackfillPass)
    examined = Examined(state.queue.tenants)
    jobs = state.cluster.jobs
    for _, job_id, shape, _ in candidates(state, examined.full):
        job = jobs[job_id]
        backfill_pass = passes[pass_of(state, job)]
        choice, lender = _choice(state, backfill_pass, job, shape)
        if choice is NO_PLACEMENT:
            backfill_pass.wait(state, job)
            if examined.note(shape.tenant) or backfill_pass.holds_all(state):
                break
        elif not shape.request.share and passes_limit(state, shape, choice):
            examined.note(shape.tenant)
        elif job.elements is not None:
            return (next_element(job, partial(_fits, state, backfill_pass, shape)),)
        elif lender:
            return (placement(state, job, choice, lender),)
        else:
            if job.spec.nodes_max > job.spec.nodes:
                choice = with_more_nodes(state, backfill_pass, job=job, shape=shape, choice=choice)
            return placed_or_measured(state, job, choice)
    state.nothing_fits = versions
    return NONE


def _choice(
    state: State, backfill_pass: BackfillPass, job: Job, shape: Shape
) -> tuple[Choice, JobId]:
    """Return where the job may start now, and the waiting job that lends it those nodes, if one
    does.
    """
    if job.spec.serve is not None:
        return choose_spread(
            state, backfill_pass, job=job, serve=job.spec.serve, request=shape.request
        ), NO_JOB
    choice = backfill_pass.choose(state, job, shape.request)
    if choice is not NO_PLACEMENT or not shape.borrows or backfill_pass.first is None:
        return choice, NO_JOB
    return backfill_pass.lend(state, job, shape.request), backfill_pass.first.job_id


def _fits(state: State, backfill_pass: BackfillPass, shape: Shape, job: Job) -> bool:
    """Return whether the job may start now."""
    choice, _ = _choice(state, backfill_pass, job, shape)
    is_sized = bool(shape.request.share)
    return choice is not NO_PLACEMENT and (is_sized or not passes_limit(state, shape, choice))


def place_reserved(state: State) -> Sequence[AnyFact]:
    """Place a job on its reserved devices once all are free, or earlier on other free devices.

    A reservation that can never be used is given up.
    """
    versions = state.versions
    if state.none_free == versions or not state.reserved:
        return NONE
    jobs = [state.cluster.jobs[job_id] for job_id in state.reserved]
    for job in in_order(state, [job for job in jobs if job.state == job_life.QUEUED]):
        if is_broken(state, job):
            return given_up(state, job)
        if job.spec.preflight and is_under_way(state, job):
            continue
        shape, own, pools = state.reserved[job.job_id]
        own_nodes = shape.request.nodes if pools else 0
        kept = [(member.node_id, member.gpus) for member in job.preemption.reserved]
        free = is_free(state.cluster, job)
        choice = (
            kept
            if free
            else choose_for(
                state.capacity,
                shape.request,
                sharing_domain_of(state.cluster, job.tenant),
                closed_to(state, job),
            )
        )
        if choice is NO_PLACEMENT:
            continue
        limited = over_limit(state, shape, own, own_nodes) or passes_limit(
            state, shape, choice, own
        )
        refused = limited or is_closed_to(state, job, choice) or is_early(state, job)
        if refused or (free and is_among_strangers(state.cluster, job)):
            return given_up(state, job)
        return placed_or_measured(state, job, choice)
    state.none_free = versions
    return NONE


def preempt(state: State) -> Sequence[AnyFact]:
    """Make room for the first waiting job by preempting jobs of lower priority, jobs of its own
    priority whose time slice is over, and jobs on lent nodes.

    If they cannot make enough room for it, the first job of another queue is tried. Only tried jobs
    count against SCAN_MAX, so many kinds of jobs in one queue do not end the pass of the others.
    The devices are reserved for that job. For an array, the next element begins, and room is made
    for that element.
    """
    versions = state.versions
    if state.no_room == versions or not state.preemptible.jobs or not state.queue.waiting:
        return NONE
    passes: dict[str, BackfillPass] = defaultdict(BackfillPass)
    tried: dict[tuple[str, Owner], None] = {}
    examined = 0
    for _, job_id, shape, lane in candidates(state, tried=tried):
        tried[lane.queue, shape.owner.by_reservation] = None
        job = state.cluster.jobs[job_id]
        backfill_pass = passes[pass_of(state, job)]
        if lane.queue in backfill_pass.queues or backfill_pass.no_backfill:
            continue
        examined += 1
        room = _room(state, backfill_pass, job, shape)
        if room is not None:
            if job.elements is not None:
                return (next_element(job, partial(_makes_room, state, backfill_pass, shape)),)
            return (
                reserve_devices(job, job.attempt, state, room.choice),
                *(preempted(state, victim, job) for victim in room.victims),
            )
        backfill_pass.wait(state, job)
        if examined == SCAN_MAX or backfill_pass.holds_all(state):
            break
    state.no_room = versions
    return NONE


def _room(state: State, backfill_pass: BackfillPass, job: Job, shape: Shape) -> Room | None:
    """Return the room that preemption can make for the job beside the reservation of the first
    waiting one.
    """
    reservation = backfill_pass.reservation(state)
    excluded = reservation.nodes if reservation is not None else 0
    excluded |= suspects_for(state, job)
    called_back = borrowers_behind(state, job) if reservation is None else ()
    room = room_for(state, job, shape.request, excluded, called_back)
    if (
        room is None
        or passes_limit(state, shape, room.choice)
        or is_closed_to(state, job, room.choice)
    ):
        return None
    return (
        room
        if reservation is None or leaves_tenant_room(state, reservation, job, room.choice)
        else None
    )


def _makes_room(state: State, backfill_pass: BackfillPass, shape: Shape, job: Job) -> bool:
    """Return whether preemption can make room for the job."""
    return _room(state, backfill_pass, job, shape) is not None


def catch_up(state: State) -> Sequence[AnyFact]:
    """Use idle time to bring rankings up to date for the next decision. Decides nothing."""
    state.capacity.catch_up()
    if state.queue.unchecked:
        state.queue.recheck(partial(is_possible, state), RECHECK_IDLE_MAX)
    return NONE
