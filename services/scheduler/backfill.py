"""Backfill (EASY): what may begin although a job before it waits. The first job that does not fit now is promised nodes, those on which
it will fit first, and the time from when on at latest; whoever comes behind it either has ended by then, or keeps off these nodes.

Pure, and a function of the folded state and the time. Only a time limit counts as an end here, for it is enforced: who says but an
estimate, or nothing, keeps off the promised nodes. Where nobody can say when the first job will fit, everybody does; it is promised the
nodes with the fewest jobs in its way, of which no new ones begin there: so it does not starve, and only these nodes run empty.
The simulation's checker is `backfill_never_delays_the_head`.
"""

from typing import Final, NamedTuple

from libs.common.cluster import Job
from libs.common.model import WHOLE_GPU, TenantId
from libs.common.ordering import DEFAULT_QUEUE
from services.scheduler.placement.choose import NOTHING, Choice, choose_for
from services.scheduler.placement.circles import circle_of
from services.scheduler.placement.forecast import UNKNOWN, latest_end_ns
from services.scheduler.queue import Shape
from services.scheduler.state import State

# Of jobs that do not fit, so many are looked past.
LOOKED_PAST_MAX: Final = 100


class Promise(NamedTuple):
    """To the first job that waits: `nodes` (bits), at latest `when_ns` (the wall clock; from UNKNOWN on nobody knows), `share` of what its
    tenant may hold.
    """

    when_ns: int
    nodes: int
    tenant: TenantId
    share: int


def may_be_passed(state: State, job: Job) -> bool:
    return state.queue_named(job.spec.queue or DEFAULT_QUEUE).backfill


def promise_to(state: State, first: Job) -> Promise:
    wish = state.queue.wish(first)
    when_ns, nodes = state.forecast(wish, circle_of(state.cluster, first.tenant)).earliest(state.capacity.near)
    return Promise(when_ns, nodes, first.tenant, wish.total_share or wish.nodes * wish.gpus * WHOLE_GPU)


def ends_in_time(job: Job, promise: Promise, now_ns: int) -> bool:
    """Whether the job, begun now, is over before the promise is due."""
    return latest_end_ns(job.spec, now_ns) <= promise.when_ns < UNKNOWN


def beside(state: State, promise: Promise, job: Job, shape: Shape, choice: Choice) -> Choice:
    """What the job may have of all that is free: `choice` if it ends in time, else something that is not promised."""
    if ends_in_time(job, promise, state.wall_ns):
        return choice
    found = choose_for(state.capacity, shape.wish, circle_of(state.cluster, job.tenant), promise.nodes)
    return found if job.tenant != promise.tenant or _both_within_limit(state, promise, found) else NOTHING


def _both_within_limit(state: State, promise: Promise, choice: Choice) -> bool:
    tenant = state.cluster.tenants[promise.tenant]
    share = sum(hold.share for _, holds in choice for hold in holds)
    return not tenant.max_gpu_share or tenant.held_share + promise.share + share <= tenant.max_gpu_share
