"""Who is next: the heads of all lanes in one line, and who stands before a job.

Pure, and a function of the folded state. The queue that holds least for its weight goes first, in a
queue that compares tenants the tenant with the lowest rank, in a lane the smallest key. What a
decision costs grows with the lanes, never with the jobs.
"""

from collections.abc import Iterator
from functools import partial

from libs.common.model import TenantId
from libs.common.state.cluster import Job, Tenant
from services.scheduler.queueing.limits import is_possible, lets_pass, over_budget
from services.scheduler.queueing.queue import Ask, Lane, LaneId, Waiting
from services.scheduler.state.state import State

Rank = tuple[int, int, str, str]


def heads(state: State) -> Iterator[Waiting]:
    """The first waiting job of each shape in each lane, in order."""
    for lane in _lanes(state):
        yield from lane.heads()


def candidates(state: State) -> Iterator[Waiting]:
    """The same without those that let others pass (`limits.stands_aside`)."""
    ask = Ask(partial(lets_pass, state), partial(is_possible, state))
    for lane in _lanes(state):
        for head in lane.candidates(ask):
            if not (head.shape.held_s and over_budget(state, head.shape)):
                yield head


def before(state: State, job: Job) -> Iterator[Waiting]:
    """The heads that are asked before this job would be, which need not be in the queue itself."""
    own, key = state.lane_of(job), state.key_of(job)
    own_rank = rank(state, own)
    for lane in _lanes(state):
        if rank(state, lane.lane_id) > own_rank:
            return
        yield from (head for head in lane.heads() if lane.lane_id != own or head.key < key)


def _lanes(state: State) -> list[Lane]:
    """In order."""
    built = state.capacity.builds.position
    if state.queue.built != built:
        state.queue.reopen(built, partial(is_possible, state))
    lanes = list(state.queue.lanes.values())
    if len(lanes) > 1:
        lanes.sort(key=lambda lane: rank(state, lane.lane_id))
    return lanes


def in_order(state: State, jobs: list[Job]) -> list[Job]:
    """As they would stand in line."""
    return (
        sorted(jobs, key=lambda job: (rank(state, state.lane_of(job)), state.key_of(job)))
        if len(jobs) > 1
        else jobs
    )


def rank(state: State, lane: LaneId) -> Rank:
    """The smaller, the sooner; a name decides among equals."""
    queue = state.queue_named(lane.queue)
    held = state.queue_held[lane.queue] * 100 // queue.weight
    ranked = state.policy_of(queue).rank
    tenant = state.cluster.tenants.get(TenantId(lane.tenant)) or Tenant(TenantId(lane.tenant))
    return (
        held,
        ranked(tenant, state.sizes, state.cluster.use_hour) if ranked is not None else 0,
        lane.queue,
        lane.tenant,
    )
