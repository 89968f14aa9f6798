"""Backfill (EASY): start a job early without delaying the first job that waits.

The first job that does not fit now reserves nodes: those on which it will fit first, and the latest
time at which it will. A job behind it may start if it ends before that time, or if it avoids the
reserved nodes.

A preemptible job may also use the reserved nodes without an end in time: they are lent to it, and
it is told to make room as soon as the first job could start without it (`placement/lending.py`).

Pure, and a function of the folded state and the time. Only a time limit counts as an end here,
because nodes enforce it. Jobs without a time limit avoid the reserved nodes. If the time is
unknown, all later jobs avoid them. The reserved nodes are then those with the fewest jobs in the
way, and no new job starts there: the first job does not starve, and only these nodes run empty. The
simulation's checker is `backfill_never_delays_the_head`.
"""

from typing import Final, NamedTuple

import msgspec

from libs.common.model import WHOLE_GPU, JobId, TenantId
from libs.common.state.cluster import Job
from libs.common.state.ordering import DEFAULT_QUEUE
from services.scheduler.placement.choose import NO_PLACEMENT, Choice, choose_for
from services.scheduler.placement.forecast import UNKNOWN, earliest, latest_end_ns
from services.scheduler.placement.lending import LENT_MIN_NS, can_lend
from services.scheduler.placement.resource_request import ResourceRequest
from services.scheduler.placement.sharing_domains import sharing_domain_of
from services.scheduler.queueing.limits import pools_taken
from services.scheduler.queueing.queue_order import in_order
from services.scheduler.queueing.shape import shortest_spec
from services.scheduler.reservations.reservations import closed_to, kept_from, put_off
from services.scheduler.state.fabric_rules import PREFLIGHT_NS
from services.scheduler.state.state import State

# Number of jobs that do not fit before a scheduling pass ends.
SCAN_MAX: Final = 100


class HeadReservation(NamedTuple):
    """The reservation of the first waiting job.

    `nodes` are bits. `when_ns` is the latest time at which the job fits (wall clock; unknown from
    UNKNOWN on). `share` is what the job counts against its tenant's limit, in hundredths of a GPU,
    and `pools` in bytes.
    """

    when_ns: int
    nodes: int
    tenant: TenantId
    share: int
    pools: int = 0


def reservation_for(state: State, first: Job) -> HeadReservation:
    """Return the nodes on which this job will fit first, and when."""
    request = state.queue.request(first)
    domain = sharing_domain_of(state.cluster, first.tenant)
    whens = state.outlook.forecast(
        request, domain, state.wall_ns, borrowers_behind(state, first)
    ).whens
    when_ns, nodes = earliest(put_off(state, first, whens), request, state.capacity.near)
    return HeadReservation(
        when_ns,
        nodes,
        first.tenant,
        request.total_share or request.nodes * request.gpus * WHOLE_GPU,
        request.nodes * request.pools,
    )


def borrowers_behind(state: State, first: Job) -> tuple[JobId, ...]:
    """Return the jobs on lent nodes that the first waiting job may call back: those that stand
    behind it in the order of the queue.
    """
    borrowers = [state.cluster.jobs[job_id] for job_id in state.preemptible.borrowers]
    return tuple(
        sorted([job.job_id for job in borrowers if in_order(state, [job, first])[0] is first])
    )


def ends_in_time(job: Job, reservation: HeadReservation, now_ns: int) -> bool:
    """Return whether the job, started now or after its preflight, ends before the reservation
    begins.

    No allocation does: its user may extend it.
    """
    if job.spec.allocation is not None:
        return False
    starts_ns = now_ns + PREFLIGHT_NS if job.spec.preflight else now_ns
    return latest_end_ns(shortest_spec(job), starts_ns) <= reservation.when_ns < UNKNOWN


class BackfillPass(msgspec.Struct):
    """One scheduling pass over jobs that wait for the same nodes: those of one reservation, or all
    others.

    `first` is the first job that did not fit, and `reserved` its reservation, once it is known.
    `queues` are the queues of all jobs that did not fit. `no_backfill` is true once such a job's
    queue does not allow backfill.
    """

    first: Job | None = None
    reserved: HeadReservation | None = None
    no_backfill: bool = False
    queues: dict[str, None] = {}

    def wait(self, state: State, job: Job) -> None:
        """Note that this job does not fit now."""
        queue = job.spec.queue or DEFAULT_QUEUE
        self.first = self.first or job
        self.no_backfill = self.no_backfill or not state.queue_named(queue).backfill
        self.queues[queue] = None

    def holds_all(self, state: State) -> bool:
        """Return whether no later job can start: backfill is off, and no reservation has nodes of
        its own.
        """
        return self.no_backfill and not state.cluster.reservations

    def choose(self, state: State, job: Job, request: ResourceRequest, crowded: int = 0) -> Choice:
        """Return a placement on which the next job may start now, without the nodes `crowded`
        (bits).
        """
        if self.no_backfill:
            return NO_PLACEMENT
        capacity = state.capacity
        image = job.spec.image
        domain = "" if request.share == WHOLE_GPU else sharing_domain_of(state.cluster, job.tenant)
        excluded_nodes = closed_to(state, job) | crowded
        preferred = capacity.bits_of(state.cluster.image_nodes.get(image, ())) if image else 0
        choice = choose_for(capacity, request, domain, excluded_nodes, preferred)
        if self.first is None:
            return choice
        # Also when nothing fits: a forecast that is used rarely has many nodes to examine at once.
        reservation = self.reservation(state)
        if (
            reservation is None
            or choice is NO_PLACEMENT
            or ends_in_time(job, reservation, state.wall_ns)
        ):
            return choice
        excluded_nodes |= reservation.nodes
        choice = choose_for(capacity, request, domain, excluded_nodes, preferred)
        return choice if leaves_tenant_room(state, reservation, job, choice) else NO_PLACEMENT

    def lend(self, state: State, job: Job, request: ResourceRequest) -> Choice:
        """Return a placement on reserved nodes for a job that can borrow: it makes room once the
        first job that waits could start.

        Before a reservation of others nothing is lent, because the first job must begin in time,
        and nothing to jobs that take turns, because each has its own.
        """
        first, reservation = self.first, self.reservation(state)
        if (
            first is None
            or reservation is None
            or self.no_backfill
            or reservation.when_ns - state.wall_ns < LENT_MIN_NS
            or not can_lend(first, job)
            or state.slice_of(job)
            or kept_from(state, first)
        ):
            return NO_PLACEMENT
        domain = sharing_domain_of(state.cluster, job.tenant)
        choice = choose_for(state.capacity, request, domain, closed_to(state, job))
        if choice is NO_PLACEMENT or not leaves_tenant_room(state, reservation, job, choice):
            return NO_PLACEMENT
        return choice

    def reservation(self, state: State) -> HeadReservation | None:
        """Return the reservation of the first job that did not fit, or None while there is no such
        job.
        """
        if self.reserved is None and self.first is not None:
            self.reserved = reservation_for(state, self.first)
        return self.reserved


def leaves_tenant_room(
    state: State, reservation: HeadReservation, job: Job, choice: Choice
) -> bool:
    """Return whether the tenant's limit still allows the reserved job beside this placement."""
    tenant = state.cluster.tenants[reservation.tenant]
    if job.tenant != reservation.tenant:
        return True
    pools = len(choice) * job.spec.pools_on_node_bytes
    both = pools_taken(state, tenant) + reservation.pools + pools if pools else 0
    if reservation.pools and 0 < tenant.max_pool_bytes < both:
        return False
    if not tenant.max_gpu_share:
        return True
    share = sum(hold.share for _, holds in choice for hold in holds)
    return (
        tenant.held_share + state.reserved_share[reservation.tenant] + reservation.share + share
        <= tenant.max_gpu_share
    )
