"""What the scheduler decides, as a list of rules. Each looks at the state and gives the facts of one decision, or
nothing.

Pure: same state, same clock, same silence, same facts. The shell applies what a rule gave and asks again from the
first rule, so the order below is the order of importance: what frees devices goes before what takes them.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from libs.common import job_life, node_life
from libs.common.cluster import Job, MemberView, is_removed
from libs.common.facts import (
    AllocationWarned,
    AnyFact,
    JobClosed,
    JobPlaced,
    JobQueued,
    JobRequeued,
    JobStopOrdered,
    NodeLost,
    NodeRemoved,
    NodeReturned,
)
from libs.common.model import Member, NodeId
from libs.common.ordering import SECOND_NS
from services.scheduler.backfill import LOOKED_PAST_MAX, Promise, beside, may_be_passed, promise_to
from services.scheduler.line import heads
from services.scheduler.models import scale
from services.scheduler.placement.capacity import bits
from services.scheduler.placement.choose import NOTHING, Choice, choose_for, possible
from services.scheduler.placement.circles import circle_of
from services.scheduler.placement.wish import wish_of
from services.scheduler.queue import Shape
from services.scheduler.renewals import is_empty
from services.scheduler.state import ENQUEUE, EXPIRE, SETTLE, STOP, WITHDRAW, State, is_hurt, is_warned

# A job that nodes refuse or lose this often is failed: it would go round for ever.
ATTEMPTS_MAX: Final = 100
# Its node ended it at its limit, by the node's own clock (`services/node_agent/decide.py`).
TIME_LIMIT: Final = "time_limit"
NODE_REMOVED: Final = "node_removed"
# A user asked for the next attempt.
REQUEUED: Final = "requeued"
# The job that it had to wait for did not end well.
IN_VAIN: Final = "dependency_failed"
# The time of an allocation is over.
EXPIRED: Final = "expired"
CANCELLED: Final = "cancelled"
# How an allocation ends well: stopped for this, it ended as that.
GIVEN_BACK: Final = {EXPIRED: EXPIRED, CANCELLED: "released"}
NONE: Final[tuple[AnyFact, ...]] = ()


class Heard(msgspec.Struct, frozen=True):
    """What no fact says, but the heartbeats or their absence: `silent` are (node, incarnation) that were not heard for longer than a lease
    and its margin, `quiet` are nodes that were not heard for some heartbeats, `removable` are nodes to be removed that no agent
    believes any more.
    """

    silent: tuple[tuple[NodeId, int], ...] = ()
    quiet: tuple[NodeId, ...] = ()
    removable: tuple[NodeId, ...] = ()


NOBODY: Final = Heard()


def decide(state: State, now_ns: int, heard: Heard = NOBODY, wall_ns: int | None = None) -> Sequence[AnyFact]:
    """The next decision. `now_ns` is this machine's boot clock: no duration is ever taken between two machines' clocks. `wall_ns` is
    the time of facts, for the waits after crashes, which outlive a term; without it one clock is both.
    """
    state.now_ns = now_ns
    state.pass_time(now_ns if wall_ns is None else wall_ns)
    if state.epoch == 0 or state.cluster.epoch != state.epoch:
        return NONE
    return (
        settle(state)
        or stop(state)
        or stop_unstarted(state, now_ns)
        or expire(state)
        or bury_node(state)
        or return_node(state)
        or lose_node(state, heard.silent)
        or vacate(state)
        or remove_node(state, heard.removable)
        or withdraw(state)
        or scale(state, now_ns if wall_ns is None else wall_ns, heard.quiet)
        or enqueue(state)
        or place(state)
    )


def settle(state: State) -> Sequence[AnyFact]:
    """Every member is over: the job ends, or goes back to the queue with the next attempt."""
    job = state.first(SETTLE)
    return (settled(job),) if job is not None else NONE


def settled(job: Job) -> JobClosed | JobRequeued:
    """How an attempt whose members are all over goes on. A replica that was asked to end was cancelled, whatever its exit code."""
    members = sorted(job.members.values(), key=lambda member: member.rank)
    reason = _reason(job, members)
    code = _exit_code(members)
    if job.stop_reason == REQUEUED and job.cancel is None and job.attempt < ATTEMPTS_MAX:
        return JobRequeued(job_id=job.job_id, attempt=job.attempt, reason=REQUEUED, counted=False)
    if job.spec.allocation is not None and job.stop_reason in GIVEN_BACK:
        ended = GIVEN_BACK[job.stop_reason]
        return JobClosed(job_id=job.job_id, attempt=job.attempt, outcome=job_life.COMPLETED, reason=ended)
    if reason == "" and (job.cancel is None or job.spec.serve is None):
        return JobClosed(job_id=job.job_id, attempt=job.attempt, outcome=job_life.COMPLETED, exit_code=0)
    if reason == CANCELLED or job.cancel is not None:
        return JobClosed(job_id=job.job_id, attempt=job.attempt, outcome=job_life.CANCELLED, reason=CANCELLED, exit_code=code)
    counted = reason not in (*job_life.BY_THE_MACHINE, NODE_REMOVED, "refused", "start_timeout")
    if _may_try_again(job, reason, counted):
        return JobRequeued(job_id=job.job_id, attempt=job.attempt, reason=reason, counted=counted)
    return JobClosed(job_id=job.job_id, attempt=job.attempt, outcome=job_life.FAILED, reason=reason, exit_code=code)


def _reason(job: Job, members: list[MemberView]) -> str:
    """Why the attempt did not succeed, in one word; empty when every member exited with 0."""
    for member in members:
        if member.reason in job_life.BY_THE_AGENT:
            return member.reason
    if all(member.exit_code == 0 for member in members):
        return ""
    if job.stop_reason not in ("", "gang_hurt"):
        return job.stop_reason
    for member in members:
        if member.reason in job_life.BY_THE_MACHINE:
            return member.reason
    if any(member.reason == TIME_LIMIT for member in members):
        return TIME_LIMIT
    if any(member.state == job_life.REFUSED for member in members):
        return "refused"
    return "signalled" if any(member.signal and member.reason != "stopped" for member in members) else "failed"


def _exit_code(members: list[MemberView]) -> int | None:
    """What a shell would show: of the member that ended the gang rather than of those that were stopped for it."""
    bad = [member for member in members if member.exit_code != 0 and (member.exit_code is not None or member.signal)]
    own = [member for member in bad if member.reason != "stopped"] or bad
    if not own:
        return None
    return own[0].exit_code if own[0].exit_code is not None else 128 + own[0].signal


def _may_try_again(job: Job, reason: str, counted: bool) -> bool:
    """A replica only where it was refused (its port may be taken there): else its model makes another, later after each crash."""
    if job.attempt >= ATTEMPTS_MAX or reason == TIME_LIMIT:
        return False
    if job.spec.serve is not None:
        return reason == "refused"
    if counted:
        return job.retries_used < job.spec.retries
    return job.spec.requeue or reason in ("refused", "start_timeout")


def stop(state: State) -> Sequence[AnyFact]:
    """A cancel or a requeue becomes an order; a gang of which one member ended badly is stopped as a whole."""
    job = state.first(STOP)
    if job is None:
        return NONE
    if job.cancel is not None:
        return (_stop_order(job, CANCELLED, job.cancel.signal, job.cancel.grace_s),)
    if not is_hurt(job):
        return (_stop_order(job, REQUEUED, 15, job.spec.grace_s),)
    return (_stop_order(job, "gang_hurt", 15, job.spec.grace_s),)


def stop_unstarted(state: State, now_ns: int) -> Sequence[AnyFact]:
    """A job that did not start within its start limit is stopped."""
    job = state.unstarted(now_ns)
    return (_stop_order(job, "start_timeout", 15, job.spec.grace_s),) if job is not None else NONE


def expire(state: State) -> Sequence[AnyFact]:
    """An allocation that is over soon is warned of, and one whose time is over gives its devices back."""
    job = state.first(EXPIRE)
    if job is None:
        return NONE
    if not is_warned(job):
        return (AllocationWarned(job_id=job.job_id, attempt=job.attempt, expires_ns=job.expires_ns),)
    return (_stop_order(job, EXPIRED, 15, job.spec.grace_s),)


def _stop_order(job: Job, reason: str, signal: int, grace_s: int) -> JobStopOrdered:
    return JobStopOrdered(job_id=job.job_id, attempt=job.attempt, reason=reason, signal=signal, grace_ms=grace_s * 1_000)


def bury_node(state: State) -> Sequence[AnyFact]:
    """What an operator declared dead is lost with all that was held there for a job that ignores the lease."""
    for index in bits(state.dead):
        node = state.cluster.nodes[state.capacity.nodes[index]]
        return (NodeLost(node_id=node.node_id, incarnation=node.incarnation, reason=node_life.DECLARED_DEAD),)
    return NONE


def return_node(state: State) -> Sequence[AnyFact]:
    """A lost node that registered again and accounts for nothing more, but what is held there for it, is taken back."""
    for index in bits(state.returning):
        node_id = state.capacity.nodes[index]
        return (NodeReturned(node_id=node_id, incarnation=state.cluster.nodes[node_id].incarnation),)
    return NONE


def lose_node(state: State, silent: Sequence[tuple[NodeId, int]]) -> Sequence[AnyFact]:
    """A node that was silent for a lease and its margin is lost: its supervisors have stopped its jobs by now. So is an incarnation
    that another state directory replaced so long ago.
    """
    for node_id, incarnation in silent:
        node = state.cluster.nodes.get(node_id)
        if node is not None and node.usable and node.incarnation == incarnation:
            return (NodeLost(node_id=node.node_id, incarnation=incarnation),)
        if node is not None and node.replaced and node.replaced[-1] == incarnation:
            return (NodeLost(node_id=node.node_id, incarnation=incarnation, reason="replaced"),)
    return NONE


def vacate(state: State) -> Sequence[AnyFact]:
    """A node is to be removed at once: what runs there is stopped, and queued again where the job allows that."""
    for node_id in state.leaving:
        if state.cluster.memberships[node_id].wait:
            continue
        for job_id in state.cluster.nodes[node_id].members:
            job = state.cluster.jobs[job_id]
            if not job.stop_reason and job.state in (job_life.PLACED, job_life.RUNNING):
                return (_stop_order(job, NODE_REMOVED, 15, job.spec.grace_s),)
    return NONE


def remove_node(state: State, removable: Sequence[NodeId]) -> Sequence[AnyFact]:
    """A node that is to be removed, is empty, and is believed by no agent any more, counts no longer."""
    for node_id in removable:
        if not is_removed(state.cluster, node_id) and is_empty(state.cluster, node_id):
            return (NodeRemoved(node_id=node_id),)
    return NONE


def withdraw(state: State) -> Sequence[AnyFact]:
    """A job that was cancelled while it waited ends at once, and so does one that waits for another in vain."""
    job = state.first(WITHDRAW)
    if job is None:
        return NONE
    reason = IN_VAIN if job.cancel is None else CANCELLED
    return (JobClosed(job_id=job.job_id, attempt=job.attempt, outcome=job_life.CANCELLED, reason=reason),)


def enqueue(state: State) -> Sequence[AnyFact]:
    """An admitted job takes its place in the queue; one that the cluster could never hold is rejected if it asked for
    that.
    """
    job = state.first(ENQUEUE)
    if job is None:
        return NONE
    queued = JobQueued(job_id=job.job_id)
    if job.spec.reject_if_impossible and not possible(state.capacity, wish_of(job.spec)):
        reason = f"impossible: {job.spec.nodes} nodes with {job.spec.gpus} GPUs each are not in this cluster"
        return (queued, JobClosed(job_id=job.job_id, attempt=job.attempt, outcome=job_life.REJECTED, reason=reason))
    return (queued,)


def place(state: State) -> Sequence[AnyFact]:
    """The first job in order that is possible at all and within its tenant's limit; if that one does not fit now, the first behind it
    that does not delay it.
    """
    versions = (state.capacity.version, state.queue.version)
    if state.nothing_fits == versions or not state.queue.waiting:
        return NONE
    blocked: list[Job] = []
    promise: Promise | None = None
    for _, job_id, shape in heads(state):
        job = state.cluster.jobs[job_id]
        if stands_aside(state, shape, job):
            continue
        choice = choose_for(state.capacity, shape.wish, circle_of(state.cluster, job.tenant))
        if blocked and choice is not NOTHING:
            promise = promise or promise_to(state, blocked[0])
            choice = beside(state, promise, job, shape, choice)
        if choice is not NOTHING:
            if passes_limit(state, shape, choice):
                continue
            return (placement(state, job, choice),)
        blocked.append(job)
        if not may_be_passed(state, job) or len(blocked) == LOOKED_PAST_MAX:
            break
    state.nothing_fits = versions
    return NONE


def stands_aside(state: State, shape: Shape, job: Job) -> bool:
    """Whether a job lets others pass: it can never fit this cluster as it is, or its tenant holds or has used all that it may."""
    return over_limit(state, shape) or not possible(state.capacity, shape.wish)


def over_limit(state: State, shape: Shape) -> bool:
    """Whether the tenant's budget is used up, or this placement would pass its GPUs in use."""
    tenant = state.cluster.tenants.get(shape.tenant)
    return tenant is not None and (tenant.exhausted or 0 < tenant.max_gpu_share < tenant.held_share + shape.wish.total_share)


def passes_limit(state: State, shape: Shape, choice: Choice) -> bool:
    """As `over_limit`, where only the choice says how much of a device is meant."""
    tenant = state.cluster.tenants.get(shape.tenant)
    if shape.wish.share or tenant is None or not tenant.max_gpu_share:
        return False
    return tenant.max_gpu_share < tenant.held_share + sum(hold.share for _, holds in choice for hold in holds)


def placement(state: State, job: Job, choice: Choice) -> JobPlaced:
    """The choice as the fact: ranks in order, each member with the incarnation it was decided for, one port on the
    first node.
    """
    nodes = state.cluster.nodes
    members = tuple(Member(node_id, nodes[node_id].incarnation, rank, holds) for rank, (node_id, holds) in enumerate(choice))
    port = state.free_port(nodes[choice[0][0]].address)
    held_s = job.spec.allocation.expires_s if job.spec.allocation is not None else 0
    expires_ns = state.wall_ns + held_s * SECOND_NS if held_s else 0
    return JobPlaced(job_id=job.job_id, attempt=job.attempt, members=members, port=port, expires_ns=expires_ns)
