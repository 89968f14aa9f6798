"""The jobs that are tried before a job, and why: the explanation's part about the order of the
queue.

Pure.
"""

from heapq import nsmallest
from itertools import islice
from typing import Final, NamedTuple

from libs.common.model import TenantId
from libs.common.state.cluster import Job
from libs.common.state.ordering import SECOND_NS
from services.scheduler import policies
from services.scheduler.explain.asker import job_named, tenant_named
from services.scheduler.explain.classes import Blocker, blocker, named
from services.scheduler.placement.bits import indexes
from services.scheduler.placement.forecast import UNKNOWN
from services.scheduler.queueing import queue_order as queue_order
from services.scheduler.queueing.backfill import reservation_for
from services.scheduler.queueing.limits import is_blocked
from services.scheduler.queueing.queue_order import heads, rank
from services.scheduler.reservations.reservations import pass_of
from services.scheduler.state.state import State

_FIRST: Final = "was submitted first"
_WORDS: Final = {
    "priority": "has waited longer for its priority",
    "srsf": "has less left to do",
    "las": "has used less so far",
    "deadline": "has the earlier deadline",
}


class Before(NamedTuple):
    """The number of jobs before this one, and the first of them."""

    many: int
    first: tuple[Job, ...]


def before(state: State, job: Job, named: int) -> Before:
    """Return the waiting jobs that `place` tries before this one and that are not blocked."""
    aside = {
        shape: is_blocked(state, shape, state.cluster.jobs[head])
        for _, head, shape, _ in heads(state)
    }
    ranks = {lane.lane_id: rank(state, lane.lane_id) for lane in state.queue.lanes.values()}
    own = (rank(state, state.lane_of(job)), state.key_of(job))
    found = [
        (place, job_id)
        for job_id, each in state.queue.waiting.items()
        if not aside[each.shape] and (place := (ranks[each.lane], each.key)) < own
    ]
    return Before(
        len(found), tuple(state.cluster.jobs[job_id] for _, job_id in nsmallest(named, found))
    )


def in_the_way(state: State, job: Job, named: int) -> list[Job]:
    """Return the first of these jobs for each shape, which is quickly computed."""
    ahead = (
        (state.cluster.jobs[job_id], shape)
        for _, job_id, shape, _ in queue_order.before(state, job)
    )
    same_nodes = (
        (other, shape) for other, shape in ahead if pass_of(state, other) == pass_of(state, job)
    )
    return list(
        islice((other for other, shape in same_nodes if not is_blocked(state, shape, other)), named)
    )


def reserved_nodes(state: State, job: Job) -> list[Blocker]:
    """Return the nodes reserved for the first waiting job, if its queue allows backfill."""
    first = in_the_way(state, job, 1)
    if not first or not state.queue_named(state.lane_of(first[0]).queue).backfill:
        return []
    reservation = reservation_for(state, first[0])
    nodes = [state.capacity.nodes[index] for index in indexes(reservation.nodes)]
    if reservation.when_ns < UNKNOWN:
        minutes = max(0, reservation.when_ns - state.wall_ns) // SECOND_NS // 60
        when = (
            f"in {minutes // 60}h{minutes % 60:02}m at latest: jobs that start before it "
            "end by then, run elsewhere, or make room when asked (--preemptible)"
        )
    else:
        when = "at an unknown time: only jobs that make room when asked (--preemptible) start there"
    return [
        blocker(
            f"reserved for {job_named(state, first[0].job_id)}",
            len(nodes),
            f"{named(nodes)}; {when}",
        )
    ]


def policy_name(state: State, job: Job) -> str:
    """Return the name of the policy of the job's queue."""
    policy = state.policy_of(state.queue_named(state.lane_of(job).queue))
    return next(
        name
        for name, each in (*policies.POLICIES.items(), *policies.PLUGGED.items())
        if each is policy
    )


def reason(state: State, job: Job, other: Job) -> str:
    """Return in a few words why `other` goes before `job`."""
    theirs, own = state.lane_of(other), state.lane_of(job)
    if theirs.queue != own.queue:
        return f"is of queue {theirs.queue}, which holds less for its weight"
    if theirs.tenant != own.tenant:
        return (
            f"is of {tenant_named(state, TenantId(theirs.tenant))}, which has less for its weight"
        )
    name = policy_name(state, job)
    if name in policies.PLUGGED:
        return f"is first by the order {name}"
    slices = state.queue_named(own.queue).time_slice_s > 0
    if other.spec.priority > job.spec.priority and (slices or name in ("priority", "fair_share")):
        return f"has priority {other.spec.priority}, this one {job.spec.priority}"
    if slices and other.preemption.sliced_ns < job.preemption.sliced_ns:
        return "has waited longer for its turn"
    same = state.key_of(other)[:-2] == state.key_of(job)[:-2]
    return _FIRST if same or other.seq < job.seq else _WORDS.get(name, _FIRST)
