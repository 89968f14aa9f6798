"""`whatif`: would this job start now, and where, or what stands in its way. Nothing is recorded and nothing is held for it.

Pure: it asks the same questions as `decide.place` and gives the same proof as `why`, of a job that stands last in the queue.
"""

from itertools import islice
from typing import Any, Final

import msgspec

from libs.common import job_life
from libs.common.cluster import Job
from libs.common.model import GpuHold, JobId, JobSpec, TenantId
from libs.common.new_nodes import NewNodes
from services.scheduler.backfill import LOOKED_PAST_MAX, beside, may_be_passed, promise_to
from services.scheduler.decide import passes_limit, stands_aside
from services.scheduler.explain import why_queued
from services.scheduler.line import before
from services.scheduler.placement.choose import NOTHING, Choice, choose
from services.scheduler.placement.circles import circle_of
from services.scheduler.queue import shape_of
from services.scheduler.state import State

# Behind every job that was submitted.
LAST: Final = 1 << 62


class WhatIfAsk(msgspec.Struct, frozen=True):
    """The job as its tenant would submit it; `add` are nodes to imagine beside the cluster's (`with_nodes.py`)."""

    spec: JobSpec
    tenant: TenantId
    add: NewNodes | None = None


def what_if(state: State, ask: WhatIfAsk) -> dict[str, Any]:
    """The answer as JSON-able data: would_start, placement (by rank), answer, blockers, remedy, at (stream sequence)."""
    job = Job(JobId(""), ask.spec, ask.tenant, "", seq=LAST, state=job_life.QUEUED)
    choice = _choice(state, job)
    proof = why_queued(state, job)
    found = {"would_start": choice is not NOTHING, "placement": [_member(rank, *member) for rank, member in enumerate(choice)]}
    if choice is not NOTHING:
        proof |= {"answer": f"it would start now, on {', '.join(node_id for node_id, _ in choice)}", "blockers": [], "remedy": None}
    elif refusal := _refusal(state, ask.tenant):
        proof |= {"answer": refusal, "remedy": "wait for some of the tenant's jobs to start"}
    return found | {name: proof[name] for name in ("answer", "blockers", "remedy", "at")}


def _choice(state: State, job: Job) -> Choice:
    """What `place` would choose if this job came now: while one before it waits for devices, only what does not delay that one."""
    shape = shape_of(job)
    if stands_aside(state, shape, job) or _refusal(state, job.tenant):
        return NOTHING
    heads = before(state, job)
    ahead = (state.cluster.jobs[job_id] for _, job_id, shape, _ in heads if not stands_aside(state, shape, state.cluster.jobs[job_id]))
    blocked = list(islice(ahead, LOOKED_PAST_MAX))
    if len(blocked) == LOOKED_PAST_MAX or not all(may_be_passed(state, each) for each in blocked):
        return NOTHING
    choice = choose(state.capacity, job.spec, circle_of(state.cluster, job.tenant))
    if blocked and choice is not NOTHING:
        choice = beside(state, promise_to(state, blocked[0]), job, shape, choice)
    return NOTHING if passes_limit(state, shape, choice) else choice


def _refusal(state: State, name: TenantId) -> str:
    """Why quota would not admit it; empty when it would."""
    tenant = state.cluster.tenants.get(name)
    if tenant is None or not 0 < tenant.max_waiting <= tenant.waiting:
        return ""
    return f"tenant {name} may have {tenant.max_waiting} jobs waiting and has {tenant.waiting}"


def _member(rank: int, node_id: str, holds: tuple[GpuHold, ...]) -> dict[str, Any]:
    return {"rank": rank, "node_id": node_id, "gpus": [{"uuid": hold.uuid, "share": hold.share} for hold in holds]}
