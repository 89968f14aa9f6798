"""The order of the queue: the heads of all lanes, and the jobs before a given one.

Pure, and a function of the folded state. The queue that holds least for its weight goes first. In a
queue whose policy compares tenants, the tenant with the lowest rank goes first. In a lane, the
smallest key goes first. The cost of a decision grows with the number of lanes, not of jobs.
"""

from collections.abc import Collection, Iterator
from functools import partial

from libs.common.model import TenantId
from libs.common.state.cluster import Job, Tenant
from services.scheduler.queueing.lane import Lane
from services.scheduler.queueing.limits import is_possible, room_of
from services.scheduler.queueing.queue import RECHECK_MAX
from services.scheduler.queueing.shape import NO_OWNER, LaneId, Owner, Waiting
from services.scheduler.reservations.reservations import is_open
from services.scheduler.state.state import State

Rank = tuple[int, int, str, str]


def heads(state: State) -> Iterator[Waiting]:
    """Yield the first waiting job of each shape in each lane, in order."""
    for lane in _lanes(state):
        yield from lane.heads()


def candidates(
    state: State, full: Collection[TenantId] = (), tried: Collection[tuple[str, Owner]] = ()
) -> Iterator[Waiting]:
    """Yield the heads that may be tried now: without those that a limit or a reservation blocks,
    and without those that this cluster could never hold (`limits.is_blocked`).

    The caller may add tenants to `full` meanwhile; no more of their heads follow. It may add
    a queue and the `Owner.by_reservation` of a head to `tried`; no more heads of that queue follow
    that wait for the same nodes.
    """
    for lane in _lanes(state):
        unreserved = (lane.lane_id.queue, NO_OWNER)
        has_others = any(is_open(state, name) for name in lane.named)
        if unreserved in tried and not has_others:
            continue
        for head in lane.candidates(
            partial(room_of, state), partial(is_possible, state), full, tried
        ):
            yield head
            if unreserved in tried and not has_others:
                break


def before(state: State, job: Job) -> Iterator[Waiting]:
    """Yield the heads that are tried before this job would be. The job itself need not be in the
    queue.
    """
    own, key = state.lane_of(job), state.key_of(job)
    own_rank = rank(state, own)
    for lane in _lanes(state):
        if rank(state, lane.lane_id) > own_rank:
            return
        yield from (head for head in lane.heads() if lane.lane_id != own or head.key < key)


def _lanes(state: State) -> list[Lane]:
    """Return the lanes in order."""
    queue = state.queue
    built = state.capacity.builds.position
    if queue.built != built:
        queue.reopen(built, state.capacity.card_bytes)
    if queue.unchecked:
        queue.recheck(partial(is_possible, state), RECHECK_MAX)
    lanes = list(queue.lanes.values())
    if len(lanes) > 1:
        lanes.sort(key=lambda lane: rank(state, lane.lane_id))
    if not queue.is_charged:
        queue.order = lanes
    return lanes


def note_charges(state: State) -> None:
    """Let the rules run again if charges changed the order of the lanes since they last ran.

    Charges are frequent under load, and each pass costs more than this comparison.
    """
    queue = state.queue
    if not queue.is_charged:
        return
    queue.is_charged, before = False, queue.order
    if state.nothing_fits == state.versions and _lanes(state) != before:
        queue.version += 1


def in_order(state: State, jobs: list[Job]) -> list[Job]:
    """Return the jobs in the order that they would have in the queue."""
    return (
        sorted(jobs, key=lambda job: (rank(state, state.lane_of(job)), state.key_of(job)))
        if len(jobs) > 1
        else jobs
    )


def rank(state: State, lane: LaneId) -> Rank:
    """Return the sort key of a lane; the smallest goes first, and names break ties."""
    queue = state.queue_named(lane.queue)
    held = state.queue_held[lane.queue] * 100 // queue.weight
    ranked = state.policy_of(queue).rank
    tenant = state.cluster.tenants.get(TenantId(lane.tenant)) or Tenant(TenantId(lane.tenant))
    return (
        held,
        ranked(tenant, state.nodes.sizes, state.cluster.use_hour) if ranked is not None else 0,
        lane.queue,
        lane.tenant,
    )
