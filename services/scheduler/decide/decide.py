"""What the scheduler decides, as a list of rules.

Each looks at the state and gives the facts of one decision, or nothing.

Pure: same state, same clock, same silence, same facts. The shell applies what a rule gave and asks
again from the first rule, so the order below is the order of importance: what frees devices goes
before what takes them.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import msgspec

from libs.common import reasons
from libs.common.facts import (
    AllocationWarned,
    AnyFact,
    DevicesReserved,
    JobClosed,
    JobQueued,
    JobStopOrdered,
    NodeLost,
    NodeRemoved,
    NodeReturned,
    PluginDisabled,
)
from libs.common.life import job_life, node_life
from libs.common.model import JobId, NodeId
from libs.common.quantities import counted
from libs.common.state.cluster import Job, is_draining, is_removed
from libs.common.state.plugins import PluginFault
from services.scheduler.decide.arrays import array_ended, next_element
from services.scheduler.decide.attempts import may_try_again, settled
from services.scheduler.decide.choices import placement, reserve_devices
from services.scheduler.decide.elastic import grow, with_more_nodes
from services.scheduler.leases.renewals import is_empty
from services.scheduler.models.models import scale
from services.scheduler.models.spread import choose_spread
from services.scheduler.placement.bits import indexes
from services.scheduler.placement.choose import NO_PLACEMENT, choose_for, possible
from services.scheduler.placement.gang import widest
from services.scheduler.placement.resource_request import request_of
from services.scheduler.placement.sharing_domains import sharing_domain_of
from services.scheduler.preemption.choose import Room, preempted, room_again, room_for
from services.scheduler.preemption.preemptible import has_saved, is_saving
from services.scheduler.queueing.backfill import SCAN_MAX, BackfillPass, leaves_tenant_room
from services.scheduler.queueing.limits import over_limit, passes_limit
from services.scheduler.queueing.queue import Shape
from services.scheduler.queueing.queue_order import candidates, in_order
from services.scheduler.reservations.reservations import closed_to, is_closed_to, is_early, pass_of
from services.scheduler.reservations.reserved import is_among_strangers, is_broken, is_free
from services.scheduler.state.buckets import (
    ENQUEUE,
    EXPIRE,
    SETTLE,
    STOP,
    WITHDRAW,
    is_hurt,
    is_warned,
    wants_cancel,
)
from services.scheduler.state.state import State

# The job that it had to wait for did not end well.
IN_VAIN: Final = "dependency_failed"
NONE: Final[tuple[AnyFact, ...]] = ()


class Observations(msgspec.Struct, frozen=True):
    """What no fact says, but the heartbeats or their absence: `silent` are (node, incarnation) that
    were not heard for longer than a lease and its margin, `quiet` are nodes that were not heard for
    some heartbeats, `removable` are nodes to be removed that no agent believes any more, `faults`
    are of plug-ins, `drained` are replicas to be ended at which no gateway has a request.
    """

    silent: tuple[tuple[NodeId, int], ...] = ()
    quiet: tuple[NodeId, ...] = ()
    removable: tuple[NodeId, ...] = ()
    faults: tuple[PluginFault, ...] = ()
    drained: tuple[JobId, ...] = ()


NOTHING_OBSERVED: Final = Observations()


def decide(
    state: State, now_ns: int, observed: Observations = NOTHING_OBSERVED, wall_ns: int | None = None
) -> Sequence[AnyFact]:
    """The next decision.

    `now_ns` is this machine's boot clock: no duration is ever taken between two machines' clocks.
    `wall_ns` is the time of facts, for the waits after crashes, which outlive a term; without it
    one clock is both.
    """
    state.ring(now_ns)
    state.pass_time(now_ns if wall_ns is None else wall_ns)
    if state.epoch == 0 or state.cluster.epoch != state.epoch:
        return NONE
    return (
        disable(state, observed.faults)
        or settle(state)
        or stop(state)
        or stop_drained(state, observed.drained)
        or stop_unstarted(state, now_ns)
        or expire(state)
        or stop_unsaved(state)
        or bury_node(state)
        or return_node(state)
        or lose_node(state, observed.silent)
        or vacate(state)
        or remove_node(state, observed.removable)
        or withdraw(state)
        or scale(state, now_ns if wall_ns is None else wall_ns, observed.quiet)
        or enqueue(state)
        or place_reserved(state)
        or place(state)
        or preempt(state)
        or grow(state)
        or catch_up(state)
    )


def disable(state: State, faults: Sequence[PluginFault]) -> Sequence[AnyFact]:
    """A plug-in that went bad is asked no more, by no scheduler that folds this."""
    for fault in faults:
        plugins = state.cluster.plugins
        if plugins.version_of(fault.extends, fault.name) == fault.version and plugins.in_force(
            fault.extends, fault.name
        ):
            return (PluginDisabled(**fault._asdict()),)
    return NONE


def settle(state: State) -> Sequence[AnyFact]:
    """Every member is over: the job ends, or goes back to the queue with the next attempt.

    An array ends with its elements.
    """
    job = state.first(SETTLE)
    if job is None:
        return NONE
    return (settled(job, state.wall_ns) if job.elements is None else array_ended(job),)


def stop(state: State) -> Sequence[AnyFact]:
    """A cancel or a requeue becomes an order, and so does the end of a preempted job that has saved
    its work; a gang of which one member ended badly is stopped as a whole.
    """
    job = state.first(STOP)
    if job is None:
        return NONE
    if job.cancel is not None and wants_cancel(job):
        return (_stop_order(job, reasons.CANCELLED, job.cancel.signal, job.cancel.grace_s),)
    if is_saving(job) and has_saved(job):
        return (_stop_order(job, job.stop_reason, 15, job.spec.grace_s),)
    if not is_hurt(job):
        return (_stop_order(job, reasons.REQUEUED, 15, job.spec.grace_s),)
    return (_stop_order(job, "gang_hurt", 15, job.spec.grace_s), *_heal(state, job))


def _heal(state: State, job: Job) -> Sequence[AnyFact]:
    """What is left of a gang that lost a node is kept for its next attempt, with as many free
    devices as it lost; with fewer, if it can go on with those; if there are none, it waits in line
    as any other.
    """
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
    """A replica that is to end and has answered all that it was asked is stopped before its grace
    is over.
    """
    for job_id in drained:
        job = state.cluster.jobs.get(job_id)
        if job is not None and job.cancel is not None and is_draining(job, state.wall_ns):
            return (_stop_order(job, reasons.CANCELLED, job.cancel.signal, job.cancel.grace_s),)
    return NONE


def stop_unstarted(state: State, now_ns: int) -> Sequence[AnyFact]:
    """A job that did not start within its start limit is stopped."""
    job = state.unstarted(now_ns)
    return (
        (_stop_order(job, reasons.START_TIMEOUT, 15, job.spec.grace_s),)
        if job is not None
        else NONE
    )


def expire(state: State) -> Sequence[AnyFact]:
    """An allocation that is over soon is warned of, and one whose time is over gives its devices
    back.
    """
    job = state.first(EXPIRE)
    if job is None:
        return NONE
    if not is_warned(job):
        return (
            AllocationWarned(job_id=job.job_id, attempt=job.attempt, expires_ns=job.expires_ns),
        )
    return (_stop_order(job, reasons.EXPIRED, 15, job.spec.grace_s),)


def stop_unsaved(state: State) -> Sequence[AnyFact]:
    """A job that was told to save its work and has not saved it in its time is stopped as any
    other.
    """
    for job_id in state.preemptible.overdue:
        job = state.cluster.jobs[job_id]
        return (_stop_order(job, job.stop_reason, 15, job.spec.grace_s),)
    return NONE


def _stop_order(job: Job, reason: str, signal: int, grace_s: int) -> JobStopOrdered:
    return JobStopOrdered(
        job_id=job.job_id,
        attempt=job.attempt,
        reason=reason,
        signal=signal,
        grace_ms=grace_s * 1_000,
    )


def bury_node(state: State) -> Sequence[AnyFact]:
    """What an operator declared dead is lost with all that was held there for a job that ignores
    the lease.
    """
    for index in indexes(state.dead):
        node = state.cluster.nodes[state.capacity.nodes[index]]
        return (
            NodeLost(
                node_id=node.node_id, incarnation=node.incarnation, reason=node_life.DECLARED_DEAD
            ),
        )
    return NONE


def return_node(state: State) -> Sequence[AnyFact]:
    """A lost node that registered again and accounts for nothing more, but what is held there for
    it, is taken back.
    """
    for index in indexes(state.returning):
        node_id = state.capacity.nodes[index]
        return (
            NodeReturned(node_id=node_id, incarnation=state.cluster.nodes[node_id].incarnation),
        )
    return NONE


def lose_node(state: State, silent: Sequence[tuple[NodeId, int]]) -> Sequence[AnyFact]:
    """A node that was silent for a lease and its margin is lost: its supervisors have stopped its
    jobs by now.

    So is an incarnation that another state directory replaced so long ago.
    """
    for node_id, incarnation in silent:
        node = state.cluster.nodes.get(node_id)
        if node is not None and node.usable and node.incarnation == incarnation:
            return (NodeLost(node_id=node.node_id, incarnation=incarnation),)
        if node is not None and node.replaced and node.replaced[-1] == incarnation:
            return (NodeLost(node_id=node.node_id, incarnation=incarnation, reason="replaced"),)
    return NONE


def vacate(state: State) -> Sequence[AnyFact]:
    """A node is to be removed at once: what runs there is stopped, and queued again where the job
    allows that.
    """
    for node_id in state.leaving:
        if state.cluster.memberships[node_id].wait:
            continue
        for job_id in state.cluster.nodes[node_id].members:
            job = state.cluster.jobs[job_id]
            if not job.stop_reason and job.state in (job_life.PLACED, job_life.RUNNING):
                return (_stop_order(job, reasons.NODE_REMOVED, 15, job.spec.grace_s),)
    return NONE


def remove_node(state: State, removable: Sequence[NodeId]) -> Sequence[AnyFact]:
    """A node that is to be removed, is empty, and is believed by no agent any more, counts no
    longer.
    """
    for node_id in removable:
        if not is_removed(state.cluster, node_id) and is_empty(state.cluster, node_id):
            return (NodeRemoved(node_id=node_id),)
    return NONE


def withdraw(state: State) -> Sequence[AnyFact]:
    """A job that was cancelled while it waited ends at once, and so does one that waits for another
    in vain.
    """
    job = state.first(WITHDRAW)
    if job is None:
        return NONE
    reason = IN_VAIN if job.cancel is None else reasons.CANCELLED
    return (
        JobClosed(
            job_id=job.job_id, attempt=job.attempt, outcome=job_life.CANCELLED, reason=reason
        ),
    )


def enqueue(state: State) -> Sequence[AnyFact]:
    """An admitted job takes its place in the queue; one that the cluster could never hold is
    rejected if it asked for that.
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


def place(state: State) -> Sequence[AnyFact]:
    """The first job in order that is possible at all and within its tenant's limit; if that one
    does not fit now, the first behind it that does not delay it.
    """
    versions = state.versions
    if state.nothing_fits == versions or not state.queue.waiting:
        return NONE
    passes: dict[str, BackfillPass] = defaultdict(BackfillPass)
    waiting = 0
    for _, job_id, shape, _ in candidates(state):
        job = state.cluster.jobs[job_id]
        backfill_pass = passes[pass_of(state, job)]
        serve = job.spec.serve
        choice = (
            backfill_pass.choose(state, job, shape.request)
            if serve is None
            else choose_spread(state, backfill_pass, job, serve, shape.request)
        )
        if choice is NO_PLACEMENT:
            backfill_pass.wait(state, job)
            waiting += 1
            if waiting == SCAN_MAX or backfill_pass.holds_all(state):
                break
        elif not passes_limit(state, shape, choice):
            return (
                placement(state, job, with_more_nodes(state, backfill_pass, job, shape, choice)),
            )
    state.nothing_fits = versions
    return NONE


def place_reserved(state: State) -> Sequence[AnyFact]:
    """A job is placed on the devices that are reserved for it once all of them are free, or sooner
    where others are.

    What it can never have is reserved no more.
    """
    versions = state.versions
    if state.none_free == versions or not state.reserved:
        return NONE
    jobs = [state.cluster.jobs[job_id] for job_id in state.reserved]
    for job in in_order(state, [job for job in jobs if job.state == job_life.QUEUED]):
        if is_broken(state, job):
            return (DevicesReserved(job_id=job.job_id, attempt=job.attempt),)
        (shape, own), kept = (
            state.reserved[job.job_id],
            [(member.node_id, member.gpus) for member in job.preemption.reserved],
        )
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
        limited = over_limit(state, shape, own) or passes_limit(state, shape, choice, own)
        refused = limited or is_closed_to(state, job, choice) or is_early(state, job)
        if refused or (free and is_among_strangers(state.cluster, job)):
            return (DevicesReserved(job_id=job.job_id, attempt=job.attempt),)
        return (placement(state, job, choice),)
    state.none_free = versions
    return NONE


def preempt(state: State) -> Sequence[AnyFact]:
    """Nothing fits: the first in line is given room by those that said they may be preempted (of
    lower priority, or of its own once they had their turn), as far as they can make it, else the
    first of another queue.

    The devices are reserved for it from now on, and those behind it in line go on. Of an array the
    next element begins, for which room is made then.
    """
    versions = state.versions
    if state.no_room == versions or not state.preemptible.jobs or not state.queue.waiting:
        return NONE
    passes: dict[str, BackfillPass] = defaultdict(BackfillPass)
    for scanned, (_, job_id, shape, lane) in enumerate(candidates(state), 1):
        job = state.cluster.jobs[job_id]
        backfill_pass = passes[pass_of(state, job)]
        room = (
            _room(state, backfill_pass, job, shape)
            if lane.queue not in backfill_pass.queues and not backfill_pass.no_backfill
            else None
        )
        if room is not None:
            if job.elements is not None:
                return (next_element(job),)
            return (
                reserve_devices(job, job.attempt, state, room.choice),
                *(preempted(state, victim, job) for victim in room.victims),
            )
        backfill_pass.wait(state, job)
        if scanned == SCAN_MAX or backfill_pass.holds_all(state):
            break
    state.no_room = versions
    return NONE


def _room(state: State, backfill_pass: BackfillPass, job: Job, shape: Shape) -> Room | None:
    """What can be made and the job may have, off what the first in line is promised."""
    reservation = backfill_pass.reservation(state)
    room = room_for(state, job, shape.request, reservation.nodes if reservation is not None else 0)
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


def catch_up(state: State) -> Sequence[AnyFact]:
    """Nothing is to be decided now: the time is used to look at what changed, for the next
    decision.

    It decides nothing.
    """
    state.capacity.catch_up()
    return NONE
