"""`why JOB`: the proof of a wait. For each node the blocker that rules it out, counted, and the cheapest change that
would start the job.

Pure: it asks the same questions as `decide.place`, of any state, so that it answers for the past as well as for now.
"""

from typing import Any

from libs.common import job_life
from libs.common.cluster import Cluster, Job, Tenant, is_ready, silent_nodes, waits_for
from libs.common.model import WHOLE_GPU, JobId, NodeId
from services.scheduler.blockers import Blocker, blocker, node_blockers
from services.scheduler.decide import over_limit, passes_limit, stands_aside
from services.scheduler.line import heads, rank
from services.scheduler.placement.choose import NOTHING, choose, possible
from services.scheduler.placement.circles import circle_of
from services.scheduler.placement.wish import wish_of
from services.scheduler.queue import shape_of
from services.scheduler.state import State


def explain(state: State, job_id: JobId) -> dict[str, Any]:
    """The answer as JSON-able data: job_id, state, answer (one sentence), blockers, remedy, at (stream sequence)."""
    job = state.cluster.jobs.get(job_id)
    if job is None:
        return _answer(state, job_id, "unknown", f"no job {job_id} is known as of {state.cluster.seq}", [], None)
    if job.state != job_life.QUEUED:
        silent = silent_nodes(state.cluster, job)
        return _silent(state, job, silent) if silent else _answer(state, job_id, job.state, _not_waiting(job), [], None)
    proof = why_queued(state, job)
    return proof | {"answer": proof["answer"] + _serves_on(state.cluster, job)}


def _serves_on(cluster: Cluster, job: Job) -> str:
    """Of a replica that waits for room above the number asked for: that nothing is lost meanwhile."""
    model = cluster.models.get(job.spec.serve.model) if job.spec.serve is not None else None
    others = [cluster.jobs[job_id] for job_id in model.jobs] if model is not None else []
    ready = sum(1 for other in others if is_ready(other))
    return f"; the model serves on with {ready} ready replicas, none of which ends before this one is ready" if ready else ""


def _silent(state: State, job: Job, nodes: list[NodeId]) -> dict[str, Any]:
    """It asked to go on without a lease, so nobody but its node or an operator can say whether it lives."""
    text = f"{_not_waiting(job)}; {job_life.silence(nodes)}"
    remedy = f"wait for {nodes[0]}, or, when nothing of it is running any more: muster node dead {nodes[0]}"
    return _answer(state, job.job_id, job.state, text, [blocker("node silent", len(nodes), ", ".join(nodes))], remedy)


def why_queued(state: State, job: Job) -> dict[str, Any]:
    """The proof for a job that waits, or would."""
    if job.order.held or job.order.waits:
        return _kept_back(state, job)
    if job.preemption.reserved:
        return _room_is_made(state, job)
    if not job.has_room:
        return _at_once(state, job)
    blockers = list(node_blockers(state, job))
    shape = shape_of(job)
    tenant = state.cluster.tenants.get(job.tenant) or Tenant(job.tenant)
    if tenant.exhausted:
        budget = f"{tenant.gpu_hours} GPU hours" + (" for this month" if tenant.monthly else "")
        limit = f"tenant {job.tenant} has used up its budget of {budget}"
        spent = blocker("tenant budget", 1, limit)
        renewed = "wait for the next month (UTC), or " if tenant.monthly else ""
        remedy = f"{renewed}an administrator raises it (muster tenant set); what runs goes on"
        return _answer(state, job.job_id, job.state, f"{limit}: nothing more of it starts", [spent, *blockers], remedy)
    if over_limit(state, shape):
        return _at_limit(state, job, tenant, shape.wish.total_share, blockers)
    if not possible(state.capacity, shape.wish):
        text = f"this cluster could never hold it: {_wish(job)}, and {_largest(state)}"
        return _answer(state, job.job_id, job.state, text, blockers, _cheapest(state, job))
    choice = choose(state.capacity, job.spec, circle_of(state.cluster, job.tenant))
    if passes_limit(state, shape, choice):
        return _at_limit(state, job, tenant, sum(hold.share for _, holds in choice for hold in holds), blockers)
    if choice is not NOTHING:
        return _behind(state, job, blockers)
    ahead = _ahead(state, job)
    first = f"; {ahead[0]} is before it in the queue" if ahead else ""
    text = f"it needs {_wish(job)}, and not enough is free now{first}"
    return _answer(state, job.job_id, job.state, text, [*_queue(ahead), *blockers], "wait for running jobs to end, or cancel some")


def _at_limit(state: State, job: Job, tenant: Tenant, asked: int, blockers: list[Blocker]) -> dict[str, Any]:
    limit = f"tenant {job.tenant} holds {_gpus(tenant.held_share)} of at most {_gpus(tenant.max_gpu_share)} GPUs"
    text = f"{limit}, and this job asks for {_gpus(asked)} more"
    found = [blocker("tenant limit", 1, limit), *blockers]
    return _answer(state, job.job_id, job.state, text, found, "wait for the tenant's jobs to end")


def _kept_back(state: State, job: Job) -> dict[str, Any]:
    """It is not in line at all: somebody holds it, or it waits for other jobs."""
    others = [other for _, other in job.order.waits]
    if others:
        first = f"{others[0]} is {state.cluster.jobs[others[0]].state}"
        text = f"it begins after {', '.join(others[:3])}{' and others' if len(others) > 3 else ''}; {first}"
        return _answer(state, job.job_id, job.state, text, [blocker("dependency", len(others), first)], f"muster why {others[0]}")
    who = job.order.held_by or "its user"
    return _answer(state, job.job_id, job.state, f"{who} holds it", [blocker("held", 1, who)], f"muster release {job.job_id}")


def _room_is_made(state: State, job: Job) -> dict[str, Any]:
    """Others end for it."""
    views = [state.cluster.gpus[hold.uuid] for member in job.preemption.reserved for hold in member.gpus]
    ending = ", ".join(dict.fromkeys(key.rpartition(".")[0] for view in views for key in view.holds))
    nodes = ", ".join(member.node_id for member in job.preemption.reserved)
    text = (
        f"devices are reserved for it on {nodes}, and it is placed as soon as all are free; they are held by {ending or 'nobody any more'}"
    )
    found = [blocker("devices being freed", sum(1 for view in views if view.holds), ending)]
    return _answer(state, job.job_id, job.state, text, found, f"wait for {ending} to save its work and end" if ending else None)


def _at_once(state: State, job: Job) -> dict[str, Any]:
    """An array with as many living elements as it may have."""
    alive = list(job.elements.alive) if job.elements is not None else []
    text = f"{len(alive)} of its elements have not ended, as many as may be alive at a time"
    return _answer(state, job.job_id, job.state, text, [blocker("array limit", len(alive), alive[0])], f"muster why {alive[0]}")


def _behind(state: State, job: Job, blockers: list[Blocker]) -> dict[str, Any]:
    ahead = _ahead(state, job)
    if not ahead:
        return _answer(state, job.job_id, job.state, "it fits, and is about to be placed", [], None)
    text = f"it would fit, but {ahead[0]} is before it in the queue and waits for devices"
    remedy = f"give it a higher priority than {ahead[0]}, or cancel that one"
    return _answer(state, job.job_id, job.state, text, [*_queue(ahead), *blockers], remedy)


def _ahead(state: State, job: Job) -> list[JobId]:
    """The waiting jobs that `decide.place` comes to before this one, and does not pass over, in order."""
    aside = {shape: stands_aside(state, shape, state.cluster.jobs[head]) for _, head, shape, _ in heads(state)}
    ranks = {lane.lane_id: rank(state, lane.lane_id) for lane in state.queue.live_lanes()}
    places = {job_id: (ranks[each.lane], each.key) for job_id, each in state.queue.waiting.items() if not aside[each.shape]}
    own = (rank(state, state.lane_of(job)), state.key_of(job))
    return sorted((job_id for job_id, place in places.items() if place < own), key=places.__getitem__)


def _queue(ahead: list[JobId]) -> list[Blocker]:
    return [blocker("queue order", len(ahead), f"{ahead[0]} goes first by the order of its queue")] if ahead else []


def _cheapest(state: State, job: Job) -> str:
    """The smallest change of the job or the cluster that would make it possible."""
    wish = wish_of(job.spec)
    serving = sum(1 for place in state.capacity.places if place is not None and place.could_serve(wish))
    large = sum(1 for size in state.capacity.sizes.values() if size >= wish.gpus)
    if serving >= wish.nodes:
        return f"{serving} nodes serve it, but not {wish.nodes} that are together as it asks: ask for less of that"
    missing = wish.nodes - serving
    kind = f"with at least {wish.gpus} GPUs" if serving == large else "of the kind that it asks for"
    more = f"add {missing} node{'s' if missing > 1 else ''} {kind}"
    if serving:
        return f"{more}, or ask for {serving} nodes"
    if large:
        return f"{more}, or ask for what the blockers name as missing"
    return f"ask for at most {max(state.capacity.sizes.values(), default=0)} GPUs a node, or {more}"


def _largest(state: State) -> str:
    sizes = state.capacity.sizes
    return f"it has {len(sizes)} usable node{'s' if len(sizes) != 1 else ''} with at most {max(sizes.values(), default=0)} GPUs"


def _wish(job: Job) -> str:
    share = "" if job.spec.gpu_share == WHOLE_GPU else f" ({job.spec.gpu_share} % of each)"
    return f"{job.spec.nodes} node{'s' if job.spec.nodes > 1 else ''} with {job.spec.gpus} GPUs{share}"


def _not_waiting(job: Job) -> str:
    if job.state in job_life.ENDED:
        return f"it has ended: {job.state}" + (f" ({job.reason})" if job.reason not in ("", job.state) else "")
    text = f"it is {job.state} and waits for {waits_for(job)}"
    nodes = ", ".join(job.members)
    return f"{text} on {nodes}" if nodes else text


def _gpus(share: int) -> str:
    return f"{share / WHOLE_GPU:g}"


def _answer(state: State, job_id: str, job_state: str, text: str, blockers: list[Blocker], remedy: str | None) -> dict[str, Any]:
    return {
        "job_id": job_id,
        "state": job_state,
        "answer": text,
        "blockers": blockers,
        "remedy": remedy,
        "at": state.cluster.seq,
    }
