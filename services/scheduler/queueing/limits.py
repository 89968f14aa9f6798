"""Limits that keep a job waiting although devices are free: GPUs in use, memory pools and the
budget of its tenant.

Pure.
"""

from functools import partial

from libs.common.model import GPU_HOUR_SHARE_MS
from libs.common.state.budget import left_share_ms
from libs.common.state.cluster import Job
from libs.common.state.tenant import Tenant
from services.scheduler.placement.choose import Choice, possible
from services.scheduler.queueing.parking import EVERY_ROOM, NO_ROOM, UNBOUNDED, Room
from services.scheduler.queueing.shape import Owner, Shape, Waiting, hours_asked
from services.scheduler.reservations.reservations import is_early
from services.scheduler.state.state import State


def is_blocked(state: State, shape: Shape, job: Job) -> bool:
    """Return whether later jobs pass this one: this cluster could never hold it, its tenant is at a
    limit, or its reservation has not begun.
    """
    return (
        over_limit(state, shape)
        or not possible(state.capacity, shape.request)
        or is_early(state, job)
    )


def room_of(state: State, owner: Owner) -> Room:
    """Return what the limits of this tenant leave; none before the reservation of its jobs.

    `at_limit`, `over_budget` and `is_early` are the same rules for one job.
    """
    if owner.reserved[0] and is_owner_early(state, owner):
        return NO_ROOM
    tenant = state.cluster.tenants.get(owner.tenant)
    if tenant is None or not tenant.is_limited:
        return EVERY_ROOM
    if is_spent(state, tenant):
        return NO_ROOM
    taken = tenant.held_share + state.reserved_share[owner.tenant]
    return Room(
        tenant.max_gpu_share - taken if tenant.max_gpu_share > 0 else UNBOUNDED,
        tenant.max_pool_bytes - pools_taken(state, tenant) if tenant.max_pool_bytes else UNBOUNDED,
        partial(hours_left, state, tenant) if tenant.gpu_hours > 0 else None,
    )


def is_possible(state: State, head: Waiting) -> bool:
    """Return whether this cluster, with no job running, could hold the job."""
    return possible(state.capacity, head.shape.request)


def is_owner_early(state: State, owner: Owner) -> bool:
    """Return whether the reservation that the jobs of this owner name has not begun yet."""
    name, user = owner.reserved
    known = state.cluster.reservations.get(name) if name else None
    if known is None or not known.admits(owner.tenant, user):
        return False
    return state.wall_ns < known.start_ns and state.wall_ns < known.end_ns


def over_limit(state: State, shape: Shape, own: int = 0, own_nodes: int = 0) -> bool:
    """Return whether the tenant is at its limit, or this placement would exceed its budget."""
    return at_limit(state, shape, own, own_nodes) or over_budget(state, shape)


def at_limit(state: State, shape: Shape, own: int = 0, own_nodes: int = 0) -> bool:
    """Return whether the tenant's budget is used up, or this placement would exceed its GPUs in
    use or its memory pools.

    Devices reserved for the tenant's jobs count as in use, except `own`: the share reserved for
    this job. Likewise its pools on `own_nodes` nodes.
    """
    tenant = state.cluster.tenants.get(shape.tenant)
    if tenant is None or is_spent(state, tenant):
        return tenant is not None
    if shape.request.pools and over_pools(state, shape, own_nodes):
        return True
    if tenant.max_gpu_share <= 0:
        return False
    taken = tenant.held_share + state.reserved_share[shape.tenant] - own
    return tenant.max_gpu_share < taken + shape.request.least_share_on(state.capacity.card_bytes)


def is_spent(state: State, tenant: Tenant) -> bool:
    """Return whether the tenant's budget is used up.

    Quota says so by BudgetExhausted. While it is away, attempts that ended and are not charged yet
    count too.
    """
    return tenant.exhausted or 0 < tenant.gpu_hours * GPU_HOUR_SHARE_MS <= used_share_ms(
        state, tenant
    )


def used_share_ms(state: State, tenant: Tenant) -> int:
    """Return what counts against the tenant's budget, charged or not."""
    return tenant.budget_share_ms + state.owed.share_ms[tenant.tenant]


def over_pools(state: State, shape: Shape, own_nodes: int = 0) -> bool:
    """Return whether this placement would exceed the tenant's limit on memory pools."""
    tenant, request = state.cluster.tenants.get(shape.tenant), shape.request
    if tenant is None or not tenant.max_pool_bytes or not request.pools:
        return False
    more = (request.nodes - own_nodes) * request.pools
    return tenant.max_pool_bytes < pools_taken(state, tenant) + more


def pools_taken(state: State, tenant: Tenant) -> int:
    """Return the bytes of pools that the tenant's jobs hold, or that are reserved for them."""
    return tenant.use.held_pool_bytes + state.reserved_pools[tenant.tenant]


def over_budget(state: State, shape: Shape) -> bool:
    """Return whether an allocation would hold more GPU hours than its tenant has left."""
    tenant = state.cluster.tenants.get(shape.tenant) if shape.held_s else None
    return (
        tenant is not None
        and tenant.gpu_hours > 0
        and hours_left(state, tenant) < hours_asked(shape)
    )


def hours_left(state: State, tenant: Tenant) -> int:
    """Return the tenant's remaining budget in hundredths of a GPU times milliseconds."""
    return left_share_ms(
        state.cluster, tenant, [state.cluster.jobs[job_id] for job_id in state.held]
    )


def passes_limit(state: State, shape: Shape, choice: Choice, own: int = 0) -> bool:
    """Return whether this choice exceeds the tenant's limit, for requests whose share depends on
    the card.
    """
    tenant = state.cluster.tenants.get(shape.tenant)
    if shape.request.share or tenant is None or not tenant.max_gpu_share:
        return False
    taken = tenant.held_share + state.reserved_share[shape.tenant] - own
    return tenant.max_gpu_share < taken + sum(hold.share for _, holds in choice for hold in holds)
