"""Why a job waits, in one sentence, with what stands behind it: what is asked first is said first,
in the order of the rules.

Pure.
"""

from typing import NamedTuple

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
from services.scheduler.explain.classes import Blocker, blocker, node_blockers
from services.scheduler.explain.order import Before
from services.scheduler.placement.choose import NO_PLACEMENT, choose_for, possible
from services.scheduler.placement.resource_request import ResourceRequest, request_of
from services.scheduler.placement.sharing_domains import sharing_domain_of
from services.scheduler.queueing.limits import (
    hours_asked,
    hours_left,
    over_budget,
    over_limit,
    passes_limit,
)
from services.scheduler.queueing.queue import Shape
from services.scheduler.reservations.reservations import closed_to, is_early, window_words
from services.scheduler.state.state import State


class Reason(NamedTuple):
    """In one sentence, and what is left to do where no change of the list helps."""

    text: str
    blockers: list[Blocker]
    otherwise: str


def of(state: State, job: Job, ahead: Before) -> Reason:
    if job.order.held or job.order.waits:
        return _kept_back(state, job)
    if job.preemption.reserved:
        return _room_is_made(state, job)
    if job.refusals.waits(state.wall_ns):
        return _after_failure(state, job)
    return _asked(state, job, ahead) if job.has_room else _at_once(job)


def _refused(state: State, job: Job, text: str, nodes: list[Blocker]) -> Reason:
    """Return when the job is tried again, and how often it was refused."""
    left_s = max(0, job.refusals.changes_ns(state.wall_ns) - state.wall_ns) // SECOND_NS + 1
    times = f"{job.refusals.count} of at most {REFUSALS_MAX} times"
    found = [blocker("refused by its nodes", job.refusals.count, job.refusals.reason), *nodes]
    remedy = f"wait, or mend what the node says and submit it again (muster describe {job.job_id})"
    return Reason(f"{text}; refused {times}, tried again in {left_s} s", found, remedy)


def _after_failure(state: State, job: Job) -> Reason:
    """Explain a wait before the next attempt, after a refusal or several ends by faults of
    machines.
    """
    if job.reason == REFUSED:
        nodes = ", ".join(job.refusals.avoided(state.wall_ns))
        return _refused(state, job, f"{nodes} refused it: {job.refusals.reason}", [])
    left_s = max(0, job.refusals.not_before_ns - state.wall_ns) // SECOND_NS + 1
    text = (
        f"{job.attempt - 1} attempts ended by their machines' faults, the last one as {job.reason}"
    )
    found = [blocker("waits before its next attempt", 1, job.reason)]
    return Reason(f"{text}: it is tried again in {left_s} s", found, f"muster log -j {job.job_id}")


def _kept_back(state: State, job: Job) -> Reason:
    """It is not in line at all: somebody holds it, or it waits for other jobs."""
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
    who = job.order.held_by or "its user"
    return Reason(f"{who} holds it", [blocker("held", 1, who)], f"muster release {job.job_id}")


def _room_is_made(state: State, job: Job) -> Reason:
    """Others end for it."""
    views = [
        state.cluster.gpus[hold.uuid] for member in job.preemption.reserved for hold in member.gpus
    ]
    ending = jobs_named(state, dict.fromkeys(job_of(key) for view in views for key in view.holds))
    nodes = ", ".join(member.node_id for member in job.preemption.reserved)
    text = (
        f"devices are reserved for it on {nodes}, and it is placed as soon as all are free; they "
        f"are held by {ending or 'nobody any more'}"
    )
    found = [blocker("devices being freed", sum(1 for view in views if view.holds), ending)]
    return Reason(
        text,
        found,
        f"wait for {ending} to save its work and end" if ending else "wait for it to be placed",
    )


def _at_once(job: Job) -> Reason:
    """An array with as many living elements as it may have."""
    alive = list(job.elements.alive) if job.elements is not None else []
    text = f"{len(alive)} of its elements have not ended, as many as may be alive at a time"
    return Reason(text, [blocker("array limit", len(alive), alive[0])], f"muster why {alive[0]}")


def _asked(state: State, job: Job, ahead: Before) -> Reason:
    """What decides, in the order in which the rules ask; what rules the nodes out is said in any
    case.
    """
    nodes = node_blockers(state, job)
    kept = [blocker(*words) for words in window_words(state, job)]
    nodes = nodes._replace(blockers=[*kept, *nodes.blockers])
    scattered = nodes.serving >= job.spec.nodes and not kept
    if is_early(state, job):
        early = f"its reservation {job.spec.reservation} has not begun"
        return Reason(early, nodes.blockers, "muster reservations says when it begins")
    shape = state.queue.shape(job)
    tenant = tenant_of(state.cluster, job.tenant)
    if tenant.exhausted:
        return _spent(tenant, nodes.blockers)
    if over_budget(state, shape):
        return _beyond(state, tenant, shape, nodes.blockers)
    if over_limit(state, shape):
        least = "" if shape.request.share else "at least "
        return _at_limit(
            state, tenant, f"{least}{_gpus(shape.request.least_share)}", nodes.blockers
        )
    if not possible(state.capacity, shape.request):
        if shape.request.excluded and possible(state.capacity, request_of(job.spec)):
            return _refused(
                state,
                job,
                f"the nodes that could run it refused it: {job.refusals.reason}",
                nodes.blockers,
            )
        text = (
            f"this cluster could never hold it: {_wish(job)}, and "
            f"{_largest(state)}{_could_be_cut(state, shape.request)}"
        )
        return Reason(text, nodes.blockers, _other(state, job))
    choice = choose_for(
        state.capacity,
        shape.request,
        sharing_domain_of(state.cluster, job.tenant),
        closed_to(state, job),
    )
    if passes_limit(state, shape, choice):
        return _at_limit(
            state,
            tenant,
            _gpus(sum(hold.share for _, holds in choice for hold in holds)),
            nodes.blockers,
        )
    queue = (
        [
            blocker(
                "queue order",
                ahead.many,
                f"by the order of its queue ({order.policy_name(state, job)})",
            )
        ]
        if ahead.many
        else []
    )
    wait = "wait for running jobs to end, or cancel some"
    if choice is not NO_PLACEMENT:
        first = job_named(state, ahead.first[0].job_id) if ahead.first else "another decision"
        found = [*queue, *order.reserved_nodes(state, job), *nodes.blockers]
        return Reason(
            f"it would fit, but {first} is before it in the queue and waits for devices",
            found,
            wait,
        )
    together = (
        [blocker("nodes that are not together as it asks", nodes.serving, _scattered(job))]
        if scattered
        else []
    )
    behind = (
        f"; {job_named(state, ahead.first[0].job_id)} is before it in the queue"
        if ahead.many
        else _turn(state, job)
    )
    found = [*queue, *together, *nodes.blockers]
    return Reason(
        f"it needs {_wish(job)}, and {_enough(job, nodes.serving, bool(kept))}{behind}", found, wait
    )


def _turn(state: State, job: Job) -> str:
    """Of those with which it takes turns, whose is over next."""
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


def _enough(job: Job, serving: int, kept: bool) -> str:
    if not serving:
        return (
            "no node has that free now"
            if job.spec.nodes == 1
            else "no node could take a member now"
        )
    if serving < job.spec.nodes:
        return f"{counted(serving, 'node')} could take a member now"
    if kept:
        return "nodes that could take it are kept for others"
    return f"{serving} nodes could take a member now, but not so many of them together as it asks"


def _spent(tenant: Tenant, nodes: list[Blocker]) -> Reason:
    budget = f"{tenant.gpu_hours} GPU hours" + (" for this month" if tenant.monthly else "")
    limit = f"tenant {tenant.tenant} has used up its budget of {budget}"
    renewed = "wait for the next month (UTC), or " if tenant.monthly else ""
    remedy = f"{renewed}an administrator raises it (muster tenant set); what runs goes on"
    return Reason(
        f"{limit}: nothing more of it starts", [blocker("tenant budget", 1, limit), *nodes], remedy
    )


def _beyond(state: State, tenant: Tenant, shape: Shape, nodes: list[Blocker]) -> Reason:
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


def _other(state: State, job: Job) -> str:
    """What is left when no single change makes it possible."""
    request = request_of(job.spec)
    serving = sum(
        1 for place in state.capacity.places if place is not None and place.could_serve(request)
    )
    missing = request.nodes - serving
    if missing <= 0:
        return (
            f"{serving} nodes serve it, but not {request.nodes} that are together as it asks: ask "
            "for less of that"
        )
    return (
        f"add {counted(missing, 'node')} of the kind that it asks for, or ask for what the "
        "blockers name as missing"
    )


def _largest(state: State) -> str:
    sizes = state.capacity.sizes
    return (
        f"it has {counted(len(sizes), 'usable node')} with at most "
        f"{max(sizes.values(), default=0)} GPUs"
    )


def _could_be_cut(state: State, request: ResourceRequest) -> str:
    """A device that MIG mode would make serve the job, and how to turn that on."""
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


def _wish(job: Job) -> str:
    share = "" if job.spec.gpu_share == WHOLE_GPU else f" ({job.spec.gpu_share} % of each)"
    return f"{counted(job.spec.nodes, 'node')} with {counted(job.spec.gpus, 'GPU')}{share}"


def _gpus(share: int) -> str:
    return f"{share / WHOLE_GPU:g}"
