"""What a job may not have although it is there: its tenant's GPUs in use and budget, and who lets
others pass for that.

Pure.
"""

from libs.common.model import WHOLE_GPU
from libs.common.state.budget import left_share_ms
from libs.common.state.cluster import Job
from libs.common.state.tenant import Tenant
from services.scheduler.placement.choose import Choice, possible
from services.scheduler.queueing.queue import Shape, Waiting
from services.scheduler.reservations.reservations import is_early
from services.scheduler.state.state import State


def is_blocked(state: State, shape: Shape, job: Job) -> bool:
    """Whether a job lets others pass: it can never fit this cluster as it is, its tenant holds or
    has used all that it may, or its reservation has not begun.
    """
    return (
        over_limit(state, shape)
        or not possible(state.capacity, shape.request)
        or is_early(state, job)
    )


def lets_pass(state: State, head: Waiting) -> bool:
    """Whether all with its claim let others pass: at their tenant's limit, or before their
    reservation.
    """
    return at_limit(state, head.shape) or is_early(state, state.cluster.jobs[head.job_id])


def is_possible(state: State, head: Waiting) -> bool:
    """Whether this cluster, with nothing running on it, could hold it."""
    return possible(state.capacity, head.shape.request)


def over_limit(state: State, shape: Shape, own: int = 0) -> bool:
    """Whether the tenant is at its limit, or this placement would pass its budget."""
    return at_limit(state, shape, own) or over_budget(state, shape)


def at_limit(state: State, shape: Shape, own: int = 0) -> bool:
    """Whether the tenant's budget is used up, or this placement would pass its GPUs in use.

    What is reserved for its jobs counts as in use, but for `own`, what is reserved for this very
    one.
    """
    tenant = state.cluster.tenants.get(shape.tenant)
    if tenant is None or tenant.exhausted:
        return tenant is not None
    taken = tenant.held_share + state.reserved_share[shape.tenant] - own
    return 0 < tenant.max_gpu_share < taken + shape.request.least_share


def over_budget(state: State, shape: Shape) -> bool:
    """Whether an allocation would hold more GPU hours until it is over than its tenant has left."""
    tenant = state.cluster.tenants.get(shape.tenant) if shape.held_s else None
    return (
        tenant is not None
        and tenant.gpu_hours > 0
        and hours_left(state, tenant) < hours_asked(shape)
    )


def hours_left(state: State, tenant: Tenant) -> int:
    """Hundredths of a GPU times milliseconds."""
    return left_share_ms(
        state.cluster, tenant, [state.cluster.jobs[job_id] for job_id in state.held]
    )


def hours_asked(shape: Shape) -> int:
    """The same of an allocation; where the card decides how much of a device is meant, at most."""
    return (
        (shape.request.total_share or shape.request.nodes * shape.request.gpus * WHOLE_GPU)
        * shape.held_s
        * 1_000
    )


def passes_limit(state: State, shape: Shape, choice: Choice, own: int = 0) -> bool:
    """As `over_limit`, where only the choice says how much of a device is meant."""
    tenant = state.cluster.tenants.get(shape.tenant)
    if shape.request.share or tenant is None or not tenant.max_gpu_share:
        return False
    taken = tenant.held_share + state.reserved_share[shape.tenant] - own
    return tenant.max_gpu_share < taken + sum(hold.share for _, holds in choice for hold in holds)
