"""The choice of jobs to preempt: among all nodes that could serve, those where least work is lost.

Pure. A gang ends whole, so once it ends for one node, its other nodes cost nothing more. Levels
that a gang requires narrow the choice; levels that it prefers do not, because they are not worth
lost work.
"""

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import Final, NamedTuple

from msgspec.structs import replace

from libs.common.facts import JobPreempted
from libs.common.model import JobId
from libs.common.state.cluster import Job
from libs.common.state.ordering import DEFAULT_QUEUE
from services.scheduler.placement import gang
from services.scheduler.placement.bits import indexes
from services.scheduler.placement.choose import Choice
from services.scheduler.placement.resource_request import ResourceRequest
from services.scheduler.placement.sharing_domains import sharing_domain_of
from services.scheduler.preemption.offers import Cost, Offer, Offers, saved_ns, share_of
from services.scheduler.preemption.preemptible import Need
from services.scheduler.reservations.reservations import closed_to
from services.scheduler.state.state import State

# Most jobs that end for one job, because one commit of the log records all of them.
VICTIMS_MAX: Final = 4_096


class Room(NamedTuple):
    """The nodes and devices for a job, and the jobs that end for it."""

    choice: Choice
    victims: tuple[Job, ...]


class _Picked(NamedTuple):
    """A set of nodes, the jobs that end there, and the work that is lost."""

    lost: int
    nodes: dict[int, None]
    victims: dict[JobId, None]


def room_for(
    state: State,
    job: Job,
    request: ResourceRequest,
    excluded_nodes: int = 0,
    called_back: tuple[JobId, ...] = (),
) -> Room | None:
    """Return the room that jobs of lower priority, with a time slice that is over, or on lent nodes
    can make for this job.

    `excluded_nodes` are bits. `called_back` are the jobs on lent nodes that end for it. None if
    all these cannot make enough room, or need not.
    """
    need = Need(
        job.spec.priority,
        (job.spec.queue or DEFAULT_QUEUE) if state.slice_of(job) else "",
        called_back,
    )
    offers = state.offers(request, sharing_domain_of(state.cluster, job.tenant), need)
    room = _room(
        state,
        request,
        offers=offers.of,
        members=offers.members & ~(closed_to(state, job) | excluded_nodes),
        costs=lambda: offers.cheapest(state.wall_ns),
    )
    return room if room is not None and 0 < len(room.victims) <= VICTIMS_MAX else None


def room_again(
    state: State, job: Job, request: ResourceRequest, among: int
) -> Callable[[int], Room | None]:
    """Return a function from a number of nodes to where a gang that ends can go on: on its own
    devices, and beside them on free ones.

    `among` are the nodes to consider, as bits.
    """
    offers = Offers(
        request, sharing_domain_of(state.cluster, job.tenant), lambda other: other is job
    )
    offers.bring_up(state.capacity, state.cluster, indexes(among))
    own_first = sorted((not offer.jobs, -offer.level, index) for index, offer in offers.of.items())
    free = {index: Offer(offer.level, offer.fit) for index, offer in offers.of.items()}
    return lambda nodes: _room(
        state,
        request=replace(request, nodes=nodes),
        offers=free,
        members=offers.members,
        costs=lambda: iter(own_first),
    )


def preempted(state: State, job: Job, by: Job) -> JobPreempted:
    """Return the fact that preempts the job.

    A job with a checkpoint gets its own signal and time, and after that the grace of any stopped
    job.
    """
    spec = job.spec
    signal, grace_s = (
        (spec.checkpoint_signal, spec.checkpoint_grace_s + spec.grace_s)
        if spec.checkpoint_grace_s
        else (15, spec.grace_s)
    )
    return JobPreempted(
        job_id=job.job_id,
        attempt=job.attempt,
        by=by.job_id,
        signal=signal,
        grace_ms=grace_s * 1_000,
        lost_share_ms=lost_ns(job, state.wall_ns) // 1_000_000,
        sliced=(by is not job and spec.priority == by.spec.priority and not job.preemption.lender),
    )


def lost_ns(job: Job, now_ns: int) -> int:
    """Return the work lost if the job ends now, in hundredths of a GPU times nanoseconds."""
    return share_of(job) * max(0, now_ns - saved_ns(job))


def _room(
    state: State,
    request: ResourceRequest,
    offers: dict[int, Offer],
    members: int,
    costs: Callable[[], Iterator[Cost]],
) -> Room | None:
    near = state.capacity.near
    groups = gang.allowed(members, request, near) if request.nodes > 1 else (members,)
    picks = [
        picked
        for group in groups
        if (picked := _pick(state, offers, group=group, count=request.nodes, costs=costs()))
        is not None
    ]
    if not picks:
        return None
    best = min(picks, key=lambda picked: (picked.lost, *picked.nodes))
    choice: Choice = []
    for index in gang.in_ranks(best.nodes, near):
        place = state.capacity.places[index]
        assert place is not None, "only usable nodes offer anything"
        choice.append((place.node_id, place.taken(offers[index].fit, request)))
    return Room(choice, tuple(state.cluster.jobs[job_id] for job_id in best.victims))


def _pick(
    state: State, offers: dict[int, Offer], group: int, count: int, costs: Iterator[Cost]
) -> _Picked | None:
    """Pick `count` nodes of the group, each the one that adds least to what is lost.

    `costs` yields all nodes, the cheapest first.
    """
    if group.bit_count() < count:
        return None
    lost, nodes, victims = 0, dict[int, None](), dict[JobId, None]()
    ahead, cheaper = next(costs), list[Cost]()
    while len(nodes) < count:
        if cheaper and cheaper[0] < ahead:
            cost, _, index = heappop(cheaper)
        else:
            (cost, _, index), ahead = ahead, next(costs, ahead)
        if index in nodes or not group >> index & 1:
            continue
        lost += cost
        nodes[index] = None
        ending = [job_id for job_id in offers[index].jobs if job_id not in victims]
        victims.update(dict.fromkeys(ending))
        for other in _other_nodes_of(state, offers, ending):
            heappush(
                cheaper,
                (_additional_loss(state, offers[other], victims), -offers[other].level, other),
            )
    return _Picked(lost, nodes, victims)


def _other_nodes_of(state: State, offers: dict[int, Offer], ending: list[JobId]) -> list[int]:
    """Return the other nodes where these jobs run, which now have less to lose."""
    jobs, index = state.cluster.jobs, state.capacity.index
    nodes = [
        index[node_id]
        for job_id in ending
        if len(jobs[job_id].members) > 1
        for node_id in jobs[job_id].members
    ]
    return [node for node in nodes if node in offers]


def _additional_loss(state: State, offer: Offer, victims: dict[JobId, None]) -> int:
    return sum(
        lost_ns(state.cluster.jobs[job_id], state.wall_ns)
        for job_id in offer.jobs
        if job_id not in victims
    )
