"""`whatif`: would this job start now, and where, or what keeps it waiting; also with additional
nodes.

Pure. The state folds the job and the nodes as if they had come now, and the scheduler's own rules
decide: it is `why` for a job at the end of the queue. It changes that state, so give it a copy.
"""

from typing import Final

import msgspec

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.messages import NewNodes
from libs.common.model import JobId, JobSpec, TenantId
from libs.common.quantities import counted
from libs.common.state.cluster import Job, tenant_of
from services.scheduler.explain.explain import Answer, answer, no_answer, prove
from services.scheduler.explain.new_nodes import like_model, new_nodes
from services.scheduler.explain.trial import RunOnCopy, copied, decided_until, places, prepare, tell
from services.scheduler.state.state import State

# No real id ends with an underscore.
IMAGINED: Final = JobId("imagined_")


class WhatIfAsk(msgspec.Struct, frozen=True):
    """The job as its tenant would submit it. `add` are nodes to imagine beside the cluster's.

    `asker` as in `WhyAsk`. `user` is the one who would submit it; older gateways send none.
    """

    spec: JobSpec
    tenant: TenantId
    add: NewNodes | None = None
    asker: TenantId | None = TenantId("")
    user: str = ""


def what_if(state: State, ask: WhatIfAsk, run_on_copy: RunOnCopy = copied) -> Answer:
    """Return the explanation as `why` does, with would_start and placement (by rank)."""
    prepare(state)
    tell(
        state,
        [f.JobSubmitted(job_id=IMAGINED, spec=ask.spec, tenant=ask.tenant, user=ask.user)],
    )
    refused = _refusal(state, state.cluster.jobs[IMAGINED])
    if refused:
        return not_found(refused, state.seq) | {
            "remedy": "wait for some of the tenant's jobs to start"
        }
    facts: list[AnyFact] = [f.JobAdmitted(job_id=IMAGINED)]
    if ask.add is not None:
        like = like_model(state.cluster, ask.add.model)
        if like is None:
            return not_found(_unknown(state), state.seq)
        facts += new_nodes(state.cluster, like, ask.add.nodes, ask.add.gpus)
    tell(state, facts)
    placed = [fact for fact in decided_until(state, IMAGINED) if isinstance(fact, f.JobPlaced)]
    starts = bool(placed) and places(state, placed[-1], IMAGINED)
    prefix = _with_nodes(ask.add, len(placed) - starts) if ask.add is not None else ""
    if starts:
        return _starts(state, state.cluster.jobs[placed[-1].job_id], prefix)
    proof = prove(state, state.cluster.jobs[IMAGINED], run_on_copy)
    return _without_id(
        proof | {"would_start": False, "placement": [], "answer": prefix + proof["answer"]}
    )


def _with_nodes(add: NewNodes, placed: int) -> str:
    nodes = f"{counted(add.nodes, 'node')} of {add.gpus} {add.model or 'such'} GPUs"
    return f"with {nodes} more, and {counted(placed, 'job')} before it placed: "


def _starts(state: State, job: Job, prefix: str) -> Answer:
    members = sorted(job.members.values(), key=lambda member: member.rank)
    found = [
        {
            "rank": m.rank,
            "node_id": m.node_id,
            "gpus": [{"uuid": hold.uuid, "share": hold.share} for hold in m.gpus],
        }
        for m in members
    ]
    text = f"{prefix}it would start now, on {', '.join(member.node_id for member in members)}"
    return _without_id(
        answer(state, IMAGINED, job.state, text) | {"would_start": True, "placement": found}
    )


def not_found(text: str, at: int) -> Answer:
    """Return an answer without an explanation."""
    return _without_id(no_answer(IMAGINED, "", text, at) | {"would_start": False, "placement": []})


def _without_id(proof: Answer) -> Answer:
    return {name: value for name, value in proof.items() if name not in ("job_id", "state")}


def _unknown(state: State) -> str:
    known = ", ".join(sorted({view.gpu.model for view in state.cluster.gpus.values()})) or "none"
    return (
        f"no node here has such GPUs, so what a new one would have is not known; there are: {known}"
    )


def _refusal(state: State, job: Job) -> str:
    """Return why quota would reject the submitted job; empty if it would admit it."""
    tenant = tenant_of(state.cluster, job.tenant)
    if tenant.waiting <= tenant.waiting_max:
        return ""
    more = f", and this array has {job.waiting} elements" if job.elements is not None else ""
    return (
        f"tenant {job.tenant} may have {counted(tenant.waiting_max, 'job')} waiting and has "
        f"{tenant.waiting - job.waiting}{more}: wait for some to start"
    )
