"""Backfill (EASY): what may begin although a job before it waits.

The first job that does not fit now is promised nodes, those on which it will fit first, and the
time from when on at latest; whoever comes behind it either has ended by then, or keeps off these
nodes.

Pure, and a function of the folded state and the time. Only a time limit counts as an end here, for
it is enforced: who says but an estimate, or nothing, keeps off the promised nodes. Where nobody can
say when the first job will fit, everybody does; it is promised the nodes with the fewest jobs in
its way, of which no new ones begin there: so it does not starve, and only these nodes run empty.
The simulation's checker is `backfill_never_delays_the_head`.
"""

from typing import Final, NamedTuple

from libs.common.model import WHOLE_GPU, TenantId
from libs.common.state.cluster import Job
from libs.common.state.ordering import DEFAULT_QUEUE
from services.scheduler.placement.choose import NO_PLACEMENT, Choice, choose_for
from services.scheduler.placement.forecast import UNKNOWN, earliest, latest_end_ns
from services.scheduler.placement.resource_request import ResourceRequest
from services.scheduler.placement.sharing_domains import sharing_domain_of
from services.scheduler.reservations.reservations import closed_to, put_off
from services.scheduler.state.state import State

# Of jobs that do not fit, so many are looked past.
LOOKED_PAST_MAX: Final = 100


class Promise(NamedTuple):
    """To the first job that waits: `nodes` (bits), at latest `when_ns` (the wall clock; from
    UNKNOWN on nobody knows), `share` of what its tenant may hold.
    """

    when_ns: int
    nodes: int
    tenant: TenantId
    share: int


def promise_to(state: State, first: Job) -> Promise:
    request = state.queue.request(first)
    whens = state.forecast(request, sharing_domain_of(state.cluster, first.tenant)).whens
    when_ns, nodes = earliest(put_off(state, first, whens), request, state.capacity.near)
    return Promise(
        when_ns,
        nodes,
        first.tenant,
        request.total_share or request.nodes * request.gpus * WHOLE_GPU,
    )


def ends_in_time(job: Job, promise: Promise, now_ns: int) -> bool:
    """Whether the job, begun now, is over before the promise is due."""
    return latest_end_ns(job.spec, now_ns) <= promise.when_ns < UNKNOWN


class BackfillPass:
    """Jobs that wait for the same nodes: those of one reservation, or all others.

    `first` is the one that did not fit; `queues` are those of which a job did not.
    """

    def __init__(self) -> None:
        self.first: Job | None = None
        self.promise: Promise | None = None
        self.stands_still = False
        self.queues: dict[str, None] = {}

    def wait(self, state: State, job: Job) -> None:
        """It cannot begin now: who comes behind it passes it, or does not."""
        queue = job.spec.queue or DEFAULT_QUEUE
        self.first = self.first or job
        self.stands_still = self.stands_still or not state.queue_named(queue).backfill
        self.queues[queue] = None

    def holds_all(self, state: State) -> bool:
        """Whether all that come now wait too: nobody passes, and where nothing is reserved there is
        no other line.
        """
        return self.stands_still and not state.cluster.reservations

    def choose(self, state: State, job: Job, request: ResourceRequest, crowded: int = 0) -> Choice:
        """Return what the next job in line may begin on now, without the nodes `crowded` (bits)."""
        if self.stands_still:
            return NO_PLACEMENT
        sharing_domain, excluded_nodes = (
            sharing_domain_of(state.cluster, job.tenant),
            closed_to(state, job) | crowded,
        )
        choice = choose_for(state.capacity, request, sharing_domain, excluded_nodes)
        promise = self.promised(state)
        if promise is None or choice is NO_PLACEMENT or ends_in_time(job, promise, state.wall_ns):
            return choice
        choice = choose_for(state.capacity, request, sharing_domain, excluded_nodes | promise.nodes)
        return choice if leaves_limit(state, promise, job, choice) else NO_PLACEMENT

    def promised(self, state: State) -> Promise | None:
        """What the first one is promised, once somebody did not fit."""
        if self.promise is None and self.first is not None:
            self.promise = promise_to(state, self.first)
        return self.promise


def leaves_limit(state: State, promise: Promise, job: Job, choice: Choice) -> bool:
    """Whether the first one's tenant may still hold what is promised."""
    tenant = state.cluster.tenants[promise.tenant]
    if job.tenant != promise.tenant or not tenant.max_gpu_share:
        return True
    share = sum(hold.share for _, holds in choice for hold in holds)
    return (
        tenant.held_share + state.reserved_share[promise.tenant] + promise.share + share
        <= tenant.max_gpu_share
    )
