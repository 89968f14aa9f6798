"""Elastic gangs (`nodes` to `nodes_max`): more nodes at the placement, and growth at a checkpoint.

Pure. An attempt gets as many nodes as are free for it when it is placed. One that runs saves its
work and restarts with more nodes when some are free that no waiting job could use. Everywhere else
the gang counts with its fewest nodes, so its additional nodes delay no job before it. The
simulation's checker is `gangs_grow_only_into_unwanted_nodes`.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Final

from libs.common.facts import AnyFact
from libs.common.life import job_life
from libs.common.model import TenantId
from libs.common.state.cluster import Job, silent_nodes
from services.scheduler.decide.choices import reserve_devices
from services.scheduler.decide.preflight import suspects_for
from services.scheduler.placement.choose import NO_PLACEMENT, Choice, serving
from services.scheduler.placement.gang import widest
from services.scheduler.placement.sharing_domains import sharing_domain_of
from services.scheduler.preemption.choose import Room, preempted, room_again
from services.scheduler.preemption.offers import share_of
from services.scheduler.queueing.backfill import SCAN_MAX, BackfillPass
from services.scheduler.queueing.limits import over_limit, passes_limit
from services.scheduler.queueing.queue_order import heads, in_order
from services.scheduler.queueing.shape import Shape, shape_of
from services.scheduler.reservations.reservations import closed_to, is_early
from services.scheduler.state.state import State

NONE: Final[tuple[AnyFact, ...]] = ()


def with_more_nodes(
    state: State, backfill_pass: BackfillPass, job: Job, shape: Shape, choice: Choice
) -> Choice:
    """Return an elastic job's choice, extended to as many nodes as backfill and the tenant's
    limit allow.
    """

    def choose(nodes: int) -> Choice:
        wanted = shape.on(nodes)
        found = (
            NO_PLACEMENT
            if over_limit(state, wanted)
            else backfill_pass.choose(state, job, wanted.request)
        )
        return NO_PLACEMENT if passes_limit(state, wanted, found) else found

    return widest(job.spec.nodes, job.spec.most_nodes, choose)


def grow(state: State) -> Sequence[AnyFact]:
    """Restart a gang that has run for a while with additional free nodes that no waiting job could
    ever use.

    It saves its work first, and its devices and the free nodes are reserved for it. Runs only when
    no other rule decides anything.
    """
    versions = state.versions
    if state.none_grows == versions or not state.preemptible.ripe:
        return NONE
    wanted = cache(partial(_wanted, state))
    for job in in_order(state, [state.cluster.jobs[job_id] for job_id in state.preemptible.ripe]):
        room = (
            _more_room(state, job, wanted)
            if _runs_whole(state, job) and len(job.members) < job.spec.most_nodes
            else None
        )
        if room is not None:
            return (
                reserve_devices(job, job.attempt + 1, state, room.choice),
                preempted(state, job, by=job),
            )
    state.none_grows = versions
    return NONE


def _runs_whole(state: State, job: Job) -> bool:
    """Return whether all members run on nodes that answer, and the job is neither held nor being
    stopped.

    A silent node cannot receive the stop. A held job would not start again. One on lent nodes would
    keep them.
    """
    stays = (
        not job.stop_reason
        and not job.preemption.lender
        and job.cancel is None
        and not job.order.held
        and not silent_nodes(state.cluster, job)
    )
    return stays and all(member.state == job_life.STARTED for member in job.members.values())


def _more_room(state: State, job: Job, wanted_beside: Callable[[TenantId], int]) -> Room | None:
    shape, held, has = shape_of(job), share_of(job), len(job.members)
    own = sum(1 << state.capacity.index[node_id] for node_id in job.members)
    ranking = state.capacity.ranking(shape.request, sharing_domain_of(state.cluster, job.tenant))
    closed = closed_to(state, job)
    free = ranking.members & ~own & ~closed & ~suspects_for(state, job)
    free &= ~wanted_beside(job.tenant) if free else 0
    if not free or own & closed or over_limit(state, shape.on(has + 1), held, has):
        return None
    room = room_again(state, job, shape.request, own | free)

    def choose(nodes: int) -> Room | None:
        wanted = shape.on(nodes)
        found = None if over_limit(state, wanted, held, has) else room(nodes)
        return None if found is None or passes_limit(state, wanted, found.choice, held) else found

    return widest(has + 1, job.spec.most_nodes, choose)


def _wanted(state: State, tenant: TenantId) -> int:
    """Return the nodes, as bits, that jobs waiting beside this tenant's jobs could ever use.

    A job that the limit of another tenant keeps waiting uses none.
    """
    wanted = 0
    for number, (_, job_id, shape, _) in enumerate(heads(state)):
        limited = over_limit(state, shape)
        if number == SCAN_MAX or (limited and shape.tenant == tenant):
            return state.capacity.everywhere
        if not limited and not is_early(state, state.cluster.jobs[job_id]):
            wanted |= serving(state.capacity, shape.request)
    return wanted
