"""`why JOB`: the proof of a wait. What rules each node out, who goes first, the cheapest change that starts the job, and an estimate.

Pure. It decides as `decide` does, from any state, so that it answers for the past as well as for now; and it changes that state: give it
one of its own. What the words mean: docs/why.md.
"""

from typing import Any, Final

from libs.common import job_life
from libs.common.cluster import Cluster, Job, Tenant, is_ready, silent_nodes, tenant_of
from libs.common.model import LEVELS, REQUIRED, WHOLE_GPU, JobId, NodeId
from services.scheduler.decide import over_limit, passes_limit
from services.scheduler.placement.choose import NOTHING, choose, possible
from services.scheduler.placement.circles import circle_of
from services.scheduler.placement.wish import wish_of
from services.scheduler.proof import order
from services.scheduler.proof.change import many
from services.scheduler.proof.changes import cheapest
from services.scheduler.proof.classes import Blocker, blocker, node_blockers
from services.scheduler.proof.estimate import Estimate, estimate
from services.scheduler.proof.order import Before
from services.scheduler.proof.trial import Apart, begins, copied, prepare
from services.scheduler.queue import shape_of
from services.scheduler.state import State

# Of those before it.
NAMED_MAX: Final = 3
# Of a job that is kept back.
NEVER: Final = Estimate(None, "none: it is not in line")

Answer = dict[str, Any]


def explain(state: State, job_id: JobId, apart: Apart = copied) -> Answer:
    """The answer as JSON-able data: job_id, state, answer (one sentence), blockers, before, changes (those of the fixed list that start it
    now, cheapest first), remedy (the first of them, else what is left to do), estimate, at (stream sequence).
    """
    job = state.cluster.jobs.get(job_id)
    if job is None:
        return answer(state, job_id, "unknown", f"no job {job_id} is known as of {state.cluster.seq}")
    if job.state != job_life.QUEUED:
        silent = silent_nodes(state.cluster, job)
        return _silent(state, job, silent) if silent else answer(state, job_id, job.state, _not_waiting(job))
    prepare(state)
    if begins(state, job_id):
        return answer(state, job_id, job_life.QUEUED, f"it fits, and is about to be placed on {', '.join(job.members)}")
    return prove(state, job, apart)


def prove(state: State, job: Job, apart: Apart) -> Answer:
    """The proof for a job that waits in a state in which nothing more is decided."""
    if job.state != job_life.QUEUED:
        return answer(state, job.job_id, job.state, _not_waiting(job))
    kept_back = job.order.held or bool(job.order.waits)
    ahead = order.before(state, job, NAMED_MAX)
    text, blockers, otherwise = _kept_back(state, job) if kept_back else _reason(state, job, ahead)
    found = [change.what for change in cheapest(state, job, apart)]
    shown = answer(state, job.job_id, job.state, text + _serves_on(state.cluster, job), blockers, found[0] if found else otherwise)
    shown["before"] = [{"job_id": other.job_id, "why": order.reason(state, job, other)} for other in ahead.first]
    shown["changes"] = found
    shown["estimate"] = (NEVER if kept_back else estimate(state, job))._asdict()
    return shown


def answer(
    state: State, job_id: str, job_state: str, text: str, blockers: list[Blocker] | None = None, remedy: str | None = None
) -> Answer:
    return no_answer(job_id, job_state, text, state.cluster.seq) | {"blockers": blockers or [], "remedy": remedy}


def no_answer(job_id: str, job_state: str, text: str, at: int) -> Answer:
    """The form of every answer, without a proof."""
    return {
        "job_id": job_id,
        "state": job_state,
        "answer": text,
        "blockers": [],
        "before": [],
        "changes": [],
        "remedy": None,
        "estimate": None,
        "at": at,
    }


Reason = tuple[str, list[Blocker], str]


def _kept_back(state: State, job: Job) -> Reason:
    """It is not in line at all: somebody holds it, or it waits for other jobs."""
    others = [other for _, other in job.order.waits]
    if others:
        first = f"{others[0]} is {state.cluster.jobs[others[0]].state}"
        text = f"it begins after {', '.join(others[:3])}{' and others' if len(others) > 3 else ''}; {first}"
        return text, [blocker("dependency", len(others), first)], f"muster why {others[0]}"
    who = job.order.held_by or "its user"
    return f"{who} holds it", [blocker("held", 1, who)], f"muster release {job.job_id}"


def _reason(state: State, job: Job, ahead: Before) -> Reason:
    """What decides, in the order in which the rules ask; what rules the nodes out is said in any case."""
    nodes = node_blockers(state, job)
    shape = shape_of(job)
    tenant = tenant_of(state.cluster, job.tenant)
    if tenant.exhausted:
        return _spent(tenant, nodes.blockers)
    if over_limit(state, shape):
        return _at_limit(tenant, shape.wish.total_share, nodes.blockers)
    if not possible(state.capacity, shape.wish):
        return f"this cluster could never hold it: {_wish(job)}, and {_largest(state)}", nodes.blockers, _other(state, job)
    choice = choose(state.capacity, job.spec, circle_of(state.cluster, job.tenant))
    if passes_limit(state, shape, choice):
        return _at_limit(tenant, sum(hold.share for _, holds in choice for hold in holds), nodes.blockers)
    queue = [blocker("queue order", ahead.many, f"by the order of its queue ({order.policy_name(state, job)})")] if ahead.many else []
    wait = "wait for running jobs to end, or cancel some"
    if choice is not NOTHING:
        first = ahead.first[0].job_id if ahead.first else "another decision"
        return f"it would fit, but {first} is before it in the queue and waits for devices", [*queue, *nodes.blockers], wait
    together = [blocker("nodes that are not together as it asks", nodes.serving, _apart(job))] if nodes.serving >= job.spec.nodes else []
    behind = f"; {ahead.first[0].job_id} is before it in the queue" if ahead.many else ""
    return f"it needs {_wish(job)}, and {_enough(job, nodes.serving)}{behind}", [*queue, *together, *nodes.blockers], wait


def _apart(job: Job) -> str:
    required = [level for level in LEVELS if getattr(job.spec, level) == REQUIRED]
    return ", ".join(required) or "one model on all of them"


def _enough(job: Job, serving: int) -> str:
    if not serving:
        return "no node has that free now" if job.spec.nodes == 1 else "no node could take a member now"
    if serving < job.spec.nodes:
        return f"{many(serving, 'node')} could take a member now"
    return f"{serving} nodes could take a member now, but not so many of them together as it asks"


def _spent(tenant: Tenant, nodes: list[Blocker]) -> Reason:
    budget = f"{tenant.gpu_hours} GPU hours" + (" for this month" if tenant.monthly else "")
    limit = f"tenant {tenant.tenant} has used up its budget of {budget}"
    renewed = "wait for the next month (UTC), or " if tenant.monthly else ""
    remedy = f"{renewed}an administrator raises it (muster tenant set); what runs goes on"
    return f"{limit}: nothing more of it starts", [blocker("tenant budget", 1, limit), *nodes], remedy


def _at_limit(tenant: Tenant, asked: int, nodes: list[Blocker]) -> Reason:
    limit = f"tenant {tenant.tenant} holds {_gpus(tenant.held_share)} of at most {_gpus(tenant.max_gpu_share)} GPUs"
    text = f"{limit}, and this job asks for {_gpus(asked)} more"
    return text, [blocker("tenant limit", 1, limit), *nodes], "wait for the tenant's jobs to end"


def _other(state: State, job: Job) -> str:
    """What is left when no single change makes it possible."""
    wish = wish_of(job.spec)
    serving = sum(1 for place in state.capacity.places if place is not None and place.could_serve(wish))
    missing = wish.nodes - serving
    if missing <= 0:
        return f"{serving} nodes serve it, but not {wish.nodes} that are together as it asks: ask for less of that"
    return f"add {many(missing, 'node')} of the kind that it asks for, or ask for what the blockers name as missing"


def _largest(state: State) -> str:
    sizes = state.capacity.sizes
    return f"it has {many(len(sizes), 'usable node')} with at most {max(sizes.values(), default=0)} GPUs"


def _wish(job: Job) -> str:
    share = "" if job.spec.gpu_share == WHOLE_GPU else f" ({job.spec.gpu_share} % of each)"
    return f"{many(job.spec.nodes, 'node')} with {many(job.spec.gpus, 'GPU')}{share}"


def _gpus(share: int) -> str:
    return f"{share / WHOLE_GPU:g}"


def _not_waiting(job: Job) -> str:
    if job.state in job_life.ENDED:
        return f"it has ended: {job.state}" + (f" ({job.reason})" if job.reason not in ("", job.state) else "")
    text = f"it is {job.state} and waits for {job_life.WAITS_FOR[job.state]}"
    nodes = ", ".join(job.members)
    return f"{text} on {nodes}" if nodes else text


def _silent(state: State, job: Job, nodes: list[NodeId]) -> Answer:
    """It asked to go on without a lease, so nobody but its node or an operator can say whether it lives."""
    text = f"{_not_waiting(job)}; {job_life.silence(nodes)}"
    remedy = f"wait for {nodes[0]}, or, when nothing of it is running any more: muster node dead {nodes[0]}"
    return answer(state, job.job_id, job.state, text, [blocker("node silent", len(nodes), ", ".join(nodes))], remedy)


def _serves_on(cluster: Cluster, job: Job) -> str:
    """Of a replica that waits for room above the number asked for: that nothing is lost meanwhile."""
    model = cluster.models.get(job.spec.serve.model) if job.spec.serve is not None else None
    others = [cluster.jobs[job_id] for job_id in model.jobs] if model is not None else []
    ready = sum(1 for other in others if is_ready(other))
    return f"; the model serves on with {ready} ready replicas, none of which ends before this one is ready" if ready else ""
