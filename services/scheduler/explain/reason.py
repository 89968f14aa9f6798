"""Build the one-sentence reason why a job waits, with its blockers.

Pure. The first obstacle in the order of the rules is named first.
"""

from typing import Final, NamedTuple

from libs.common.devices import mig
from libs.common.life import job_life
from libs.common.model import LEVELS, REQUIRED, WHOLE_GPU, job_of
from libs.common.quantities import counted
from libs.common.reasons import REFUSED
from libs.common.state.budget import hours
from libs.common.state.cluster import Job, Tenant, tenant_of
from libs.common.state.ordering import SECOND_NS
from services.scheduler.decide.attempts import REFUSALS_MAX
from services.scheduler.explain import order
from services.scheduler.explain.asker import job_named, jobs_named
from services.scheduler.explain.classes import Blocker, Nodes, blocker, node_blockers
from services.scheduler.explain.measured import lost_place_words
from services.scheduler.explain.order import Before
from services.scheduler.placement.choose import NO_PLACEMENT, choose_for, possible
from services.scheduler.placement.resource_request import ResourceRequest, request_of
from services.scheduler.placement.sharing_domains import sharing_domain_of
from services.scheduler.queueing.limits import (
    hours_left,
    is_spent,
    over_budget,
    over_limit,
    over_pools,
    passes_limit,
    pools_taken,
)
from services.scheduler.queueing.shape import Shape, hours_asked
from services.scheduler.reservations.reservations import closed_to, is_early, window_words
from services.scheduler.state.state import State

WAIT: Final = "wait for running jobs to end, or cancel some"


class Reason(NamedTuple):
    """One sentence, its blockers, and what is left to do if no listed change helps."""

    text: str
    blockers: list[Blocker]
    otherwise: str


def of(state: State, job: Job, ahead: Before) -> Reason:
    """Return why the job waits."""
    if job.order.held or job.order.waits:
        return _outside_queue(state, job)
    if job.preemption.reserved:
        return _waits_for_devices(state, job)
    if job.refusals.waits(state.wall_ns):
        return _after_failure(state, job)
    return _in_queue(state, job, ahead) if job.has_room else _array_limit(job)


def _refused(state: State, job: Job, text: str, nodes: list[Blocker]) -> Reason:
    """Return the reason for a job that nodes refused: when it is tried again, and how often it was
    refused.
    """
    left_s = max(0, job.refusals.changes_ns(state.wall_ns) - state.wall_ns) // SECOND_NS + 1
    times = f"{job.refusals.count} of at most {REFUSALS_MAX} times"
    found = [blocker("refused by its nodes", job.refusals.count, job.refusals.reason), *nodes]
    remedy = (
        "wait, or fix what the node reported and submit the job again "
        f"(muster describe {job.job_id})"
    )
    return Reason(f"{text}; refused {times}, tried again in {left_s} s", found, remedy)


def _after_failure(state: State, job: Job) -> Reason:
    """Explain a wait before the next attempt: after a refusal, after faults of machines, or after
    the loss of a place during a preflight.
    """
    if text := lost_place_words(job):
        return Reason(f"{text}: it is tried again in a second", [], "wait")
    if job.reason == REFUSED:
        nodes = ", ".join(job.refusals.avoided(state.wall_ns))
        return _refused(state, job, f"{nodes} refused it: {job.refusals.reason}", [])
    left_s = max(0, job.refusals.not_before_ns - state.wall_ns) // SECOND_NS + 1
    text = (
        f"{job.attempt - 1} attempts ended by their machines' faults, the last one as {job.reason}"
    )
    found = [blocker("waits before its next attempt", 1, job.reason)]
    return Reason(f"{text}: it is tried again in {left_s} s", found, f"muster log -j {job.job_id}")


def _outside_queue(state: State, job: Job) -> Reason:
    """Explain a job that is not in the queue: it is held, or waits for other jobs."""
    others = list(job.order.waits)
    if others:
        name = job_named(state, others[0])
        first = f"{name} is {state.cluster.jobs[others[0]].state}"
        text = (
            "it begins after "
            f"{jobs_named(state, others[:3])}{' and others' if len(others) > 3 else ''}; {first}"
        )
        remedy = f"muster why {name}" if name == others[0] else f"wait for {name} to end"
        return Reason(text, [blocker("dependency", len(others), first)], remedy)
    holder = job.order.held_by or "its user"
    return Reason(
        f"{holder} holds it", [blocker("held", 1, holder)], f"muster release {job.job_id}"
    )


def _waits_for_devices(state: State, job: Job) -> Reason:
    """Explain a job with reserved devices on which other jobs have not ended yet."""
    views = [
        state.cluster.gpus[hold.uuid] for member in job.preemption.reserved for hold in member.gpus
    ]
    ending = jobs_named(state, dict.fromkeys(job_of(key) for view in views for key in view.holds))
    nodes = ", ".join(member.node_id for member in job.preemption.reserved)
    text = (
        f"devices are reserved for it on {nodes}, and it is placed as soon as all are free; they "
        f"are held by {ending or 'no job any more'}"
    )
    found = [blocker("devices being freed", sum(1 for view in views if view.holds), ending)]
    return Reason(
        text,
        found,
        f"wait for {ending} to save its work and end" if ending else "wait for it to be placed",
    )


def _array_limit(job: Job) -> Reason:
    """Explain an array with as many living elements as it may have."""
    alive = list(job.elements.alive) if job.elements is not None else []
    text = f"{len(alive)} of its elements have not ended, as many as may be alive at a time"
    return Reason(text, [blocker("array limit", len(alive), alive[0])], f"muster why {alive[0]}")


def _in_queue(state: State, job: Job, ahead: Before) -> Reason:
    """Explain a job in the queue: the first obstacle in the order of the rules.

    The blockers about nodes are listed in any case.
    """
    nodes = node_blockers(state, job)
    reserved = [blocker(*words) for words in window_words(state, job)]
    nodes = nodes._replace(blockers=[*reserved, *nodes.blockers])
    if is_early(state, job):
        early = f"its reservation {job.spec.reservation} has not begun"
        return Reason(early, nodes.blockers, "muster reservations says when it begins")
    shape = state.queue.shape(job)
    blocked = _limited(state, job, shape, nodes.blockers)
    if blocked is None and not possible(state.capacity, shape.request):
        blocked = _impossible(state, job, shape.request, nodes.blockers)
    if blocked is not None:
        return blocked
    choice = choose_for(
        state.capacity,
        shape.request,
        sharing_domain_of(state.cluster, job.tenant),
        closed_to(state, job),
    )
    if passes_limit(state, shape, choice):
        share = sum(hold.share for _, holds in choice for hold in holds)
        tenant = tenant_of(state.cluster, job.tenant)
        return _at_limit(state, tenant, _gpus(share), nodes.blockers)
    if choice is not NO_PLACEMENT:
        return _behind_others(state, job, ahead, nodes.blockers)
    return _does_not_fit(state, job, ahead=ahead, nodes=nodes, has_reserved=bool(reserved))


def _limited(state: State, job: Job, shape: Shape, nodes: list[Blocker]) -> Reason | None:
    """Return the limit of the job's tenant that blocks it, if any."""
    tenant = tenant_of(state.cluster, job.tenant)
    if is_spent(state, tenant):
        return _budget_used_up(tenant, nodes)
    if over_budget(state, shape):
        return _over_budget(state, tenant, shape, nodes)
    if over_pools(state, shape):
        return _at_pool_limit(state, tenant, shape, nodes)
    if over_limit(state, shape):
        least = "" if shape.request.share else "at least "
        share = shape.request.least_share_on(state.capacity.card_bytes)
        return _at_limit(state, tenant, f"{least}{_gpus(share)}", nodes)
    return None


def _impossible(state: State, job: Job, request: ResourceRequest, nodes: list[Blocker]) -> Reason:
    """Explain a job that this cluster cannot hold, perhaps only because nodes refused it."""
    if request.excluded and possible(state.capacity, request_of(job.spec)):
        if job.preflight is not None and not job.refusals.count:
            text = f"its preflight excluded nodes that it needs: {job.preflight.detail}"
            remedy = "repair the node or the link, or submit it again without --preflight"
            return Reason(text, nodes, remedy)
        text = f"the nodes that could run it refused it: {job.refusals.reason}"
        return _refused(state, job, text, nodes)
    text = (
        f"this cluster could never hold it: {_request(job)}, and "
        f"{_largest(state)}{_mig_candidate(state, request)}"
    )
    return Reason(text, nodes, _other_remedy(state, job))


def _queue_order(state: State, job: Job, ahead: Before) -> list[Blocker]:
    """Return the blocker about jobs that go first, if there are any."""
    by = f"by the order of its queue ({order.policy_name(state, job)})"
    return [blocker("queue order", ahead.many, by)] if ahead.many else []


def _behind_others(state: State, job: Job, ahead: Before, nodes: list[Blocker]) -> Reason:
    """Explain a job that would fit, but for jobs before it."""
    first = job_named(state, ahead.first[0].job_id) if ahead.first else "another decision"
    text = f"it would fit, but {first} is before it in the queue and waits for devices"
    order_blockers = [*_queue_order(state, job, ahead), *order.reserved_nodes(state, job)]
    return Reason(text, [*order_blockers, *nodes], WAIT)


def _does_not_fit(
    state: State, job: Job, ahead: Before, nodes: Nodes, has_reserved: bool
) -> Reason:
    """Explain a job that does not fit on what is free now."""
    scattered = nodes.serving >= job.spec.nodes and not has_reserved
    together = (
        [blocker("nodes not together as required", nodes.serving, _scattered(job))]
        if scattered
        else []
    )
    behind = (
        f"; {job_named(state, ahead.first[0].job_id)} is before it in the queue"
        if ahead.many
        else _longest_turn(state, job)
    )
    text = (
        f"it needs {_request(job)}, and {_too_few_nodes(job, nodes.serving, has_reserved)}{behind}"
    )
    return Reason(text, [*_queue_order(state, job, ahead), *together, *nodes.blockers], WAIT)


def _longest_turn(state: State, job: Job) -> str:
    """Return which job of the same time slices has run longest; empty if there is none."""
    slice_s, place = state.slice_of(job), (state.queue_of(job), job.spec.priority)
    runs = [
        other
        for job_id in state.preemptible.jobs
        if (other := state.cluster.jobs[job_id]).state == job_life.RUNNING
    ]
    turns = [
        other
        for other in runs
        if slice_s
        and state.slice_of(other)
        and (state.queue_of(other), other.spec.priority) == place
    ]
    if not turns:
        return ""
    first = min(turns, key=lambda other: other.started_ns)
    ran_s = min((state.wall_ns - first.started_ns) // SECOND_NS, slice_s)
    spent = (
        f"{ran_s // 60} of its {slice_s // 60} minutes"
        if slice_s % 60 == 0
        else f"{ran_s} of its {slice_s} seconds"
    )
    return f"; it waits for its turn: {job_named(state, first.job_id)} has run {spent}"


def _scattered(job: Job) -> str:
    required = [level for level in LEVELS if getattr(job.spec, level) == REQUIRED]
    return ", ".join(required) or "one model on all of them"


def _too_few_nodes(job: Job, serving: int, kept: bool) -> str:
    if not serving:
        return (
            "no node has that free now"
            if job.spec.nodes == 1
            else "no node could take a member now"
        )
    if serving < job.spec.nodes:
        return f"{counted(serving, 'node')} could take a member now"
    if kept:
        return "the nodes that could take it are reserved for others"
    return f"{serving} nodes could take a member now, but too few of them are together as required"


def _budget_used_up(tenant: Tenant, nodes: list[Blocker]) -> Reason:
    budget = f"{tenant.gpu_hours} GPU hours" + (" for this month" if tenant.monthly else "")
    limit = f"tenant {tenant.tenant} has used up its budget of {budget}"
    renewed = "wait for the next month (UTC), or " if tenant.monthly else ""
    remedy = f"{renewed}an administrator raises it (muster tenant set); running jobs continue"
    return Reason(
        f"{limit}: no more of its jobs start", [blocker("tenant budget", 1, limit), *nodes], remedy
    )


def _over_budget(state: State, tenant: Tenant, shape: Shape, nodes: list[Blocker]) -> Reason:
    left = (
        f"tenant {tenant.tenant} has {hours(hours_left(state, tenant))} GPU hours left of its "
        f"budget of {tenant.gpu_hours}"
    )
    text = f"{left}, and this allocation would hold {hours(hours_asked(shape))} until it is over"
    return Reason(
        text,
        [blocker("tenant budget", 1, left), *nodes],
        "hold fewer devices, or for a shorter time (--expires)",
    )


def _at_limit(state: State, tenant: Tenant, asked: str, nodes: list[Blocker]) -> Reason:
    kept = state.reserved_share[tenant.tenant]
    has = f"holds {_gpus(tenant.held_share)}" + (f" and has {_gpus(kept)} reserved" if kept else "")
    limit = f"tenant {tenant.tenant} {has} of at most {_gpus(tenant.max_gpu_share)} GPUs"
    text = f"{limit}, and this job asks for {asked} more"
    return Reason(
        text, [blocker("tenant limit", 1, limit), *nodes], "wait for the tenant's jobs to end"
    )


def _at_pool_limit(state: State, tenant: Tenant, shape: Shape, nodes: list[Blocker]) -> Reason:
    limit = (
        f"tenant {tenant.tenant} has {pools_taken(state, tenant) >> 20} MiB of at most "
        f"{tenant.max_pool_bytes >> 20} MiB of memory pools"
    )
    asked = shape.request.nodes * shape.request.pools >> 20
    return Reason(
        f"{limit}, and this job asks for {asked} MiB more",
        [blocker("tenant limit", 1, limit), *nodes],
        "wait for the tenant's jobs to end, or ask for a smaller --pool",
    )


def _other_remedy(state: State, job: Job) -> str:
    """Return what is left to do when no single change makes the job possible."""
    request = request_of(job.spec)
    serving = sum(
        1 for place in state.capacity.places if place is not None and place.could_serve(request)
    )
    missing = request.nodes - serving
    if missing <= 0:
        return (
            f"{serving} nodes could serve it, but fewer than {request.nodes} are together as "
            "required: relax that requirement"
        )
    return (
        f"add {counted(missing, 'node')} that can serve the request, or request less: the "
        "blockers name what is missing"
    )


def _largest(state: State) -> str:
    sizes = state.capacity.sizes
    return (
        f"it has {counted(len(sizes), 'usable node')} with at most "
        f"{max(sizes.values(), default=0)} GPUs"
    )


def _mig_candidate(state: State, request: ResourceRequest) -> str:
    """Return the GPU that could serve the job in MIG mode, and the command that enables it."""
    for view in state.cluster.gpus.values() if request.mig_profile else ():
        gpu, node = view.gpu, state.cluster.nodes[view.node_id]
        card = (
            mig.card_named(gpu.model, gpu.memory_bytes)
            if not gpu.mig and not gpu.mig_profiles and node.usable
            else ""
        )
        if view.present and card and request.mig_profile in mig.CARDS[card]:
            return (
                f"; GPU {gpu.uuid} of {view.node_id} can be partitioned in MIG mode: muster gpu "
                f"mig on --gpu-id {gpu.uuid}"
            )
    return ""


def _request(job: Job) -> str:
    share = "" if job.spec.gpu_share == WHOLE_GPU else f" ({job.spec.gpu_share} % of each)"
    spec = job.spec
    pools = [
        f" and a {name}pool of {size >> 20} MiB {each}"
        for name, size, each in (
            ("", spec.pool_bytes, "on each"),
            ("host ", spec.host_pool_bytes, "on each node"),
        )
        if size
    ]
    asked = f"{counted(spec.nodes, 'node')} with {counted(spec.gpus, 'GPU')}{share}"
    return asked + "".join(pools)


def _gpus(share: int) -> str:
    return f"{share / WHOLE_GPU:g}"
