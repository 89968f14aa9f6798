"""`why JOB`: the explanation of a wait.

It says what rules each node out, which jobs go first, the cheapest changes that start the job, and
an estimate. Pure: it decides as `decide` does, from any state, so it answers for the past as well.
It changes that state, so give it a copy. The user's page is docs/why.md.
"""

from typing import Any, Final

from libs.common import reasons
from libs.common.life import job_life
from libs.common.model import JobId, NodeId
from libs.common.state import model_crashes
from libs.common.state.cluster import Cluster, Job, is_ready, silent_nodes, waits_for
from services.scheduler.explain import order, reason
from services.scheduler.explain.asker import job_named
from services.scheduler.explain.changes import cheapest
from services.scheduler.explain.classes import Blocker, blocker
from services.scheduler.explain.estimate import estimate
from services.scheduler.explain.idle_words import ended_because, idle_words
from services.scheduler.explain.measured import (
    measured_racks,
    measuring,
    preflight_words,
    racks_in_words,
)
from services.scheduler.explain.trial import RunOnCopy, copied, placed_now, prepare
from services.scheduler.state.state import State

# Number of earlier jobs that are named.
NAMED_MAX: Final = 3

Answer = dict[str, Any]


def explain(state: State, job_id: JobId, run_on_copy: RunOnCopy = copied) -> Answer:
    """Return the answer as JSON-able data.

    Keys: job_id, state, answer (one sentence), blockers, before, changes (those of the fixed list
    that start the job now, cheapest first), remedy (the first of them, otherwise what is left to
    do), estimate, at (stream sequence).
    """
    job = state.cluster.jobs.get(job_id)
    if job is None:
        return answer(
            state, job_id, "unknown", f"no job {job_id} is known as of {state.cluster.seq}"
        )
    if job.state != job_life.QUEUED:
        silent = silent_nodes(state.cluster, job)
        return (
            _silent(state, job, silent)
            if silent
            else answer(
                state,
                job_id,
                job.state,
                _explain_active(job, state.wall_ns) + _quoted(state.cluster, job),
            )
        )
    if any(test.job_id == job_id for test in state.cluster.fabric.tests.values()):
        return answer(state, job_id, job.state, measuring(job))
    prepare(state)
    placed = placed_now(state, job_id)
    if placed is not None:
        return answer(
            state,
            job_id,
            job_life.QUEUED,
            f"it fits, and is about to be placed on {', '.join(placed.members)}"
            + _quoted(state.cluster, placed),
        )
    return prove(state, job, run_on_copy)


def prove(state: State, job: Job, run_on_copy: RunOnCopy) -> Answer:
    """Return the explanation for a waiting job, in a state in which no decision is left."""
    if job.state != job_life.QUEUED:
        return answer(state, job.job_id, job.state, _explain_active(job, state.wall_ns))
    ahead = order.before(state, job, NAMED_MAX)
    text, blockers, otherwise = reason.of(state, job, ahead)
    found = [change.what for change in cheapest(state, job, run_on_copy)]
    shown = answer(
        state,
        job_id=job.job_id,
        job_state=job.state,
        text=text + racks_in_words(state.cluster, job) + _serves_on(state.cluster, job),
        blockers=blockers,
        remedy=found[0] if found else otherwise,
    )
    shown["before"] = [
        {"job_id": job_named(state, other.job_id), "why": order.reason(state, job, other)}
        for other in ahead.first
    ]
    shown["changes"] = found
    shown["estimate"] = estimate(state, job)._asdict()
    return shown


def answer(
    state: State,
    job_id: str,
    job_state: str,
    text: str,
    blockers: list[Blocker] | None = None,
    remedy: str | None = None,
) -> Answer:
    return no_answer(job_id, job_state, text, state.cluster.seq) | {
        "blockers": blockers or [],
        "remedy": remedy,
    }


def no_answer(job_id: str, job_state: str, text: str, at: int) -> Answer:
    """Return an answer of the usual form without an explanation."""
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


def _quoted(cluster: Cluster, job: Job) -> str:
    """Return the measurements behind the choice of a gang's nodes, as clauses."""
    if job.state in job_life.ENDED:
        return ""
    words = [measured_racks(cluster, job.members), preflight_words(job)]
    return "".join(f"; {each}" for each in words if each)


def _explain_active(job: Job, wall_ns: int) -> str:
    if job.state in job_life.ENDED:
        if words := model_crashes.never_began(job):
            return f"it has ended: {job.state}, because {words}"
        return f"it has ended: {job.state}" + (
            f" ({ended_because(job)})" if job.reason not in ("", job.state) else ""
        )
    if job.stop_reason == reasons.GROWN and job.preemption.reserved:
        return (
            "it saves its work and ends, to restart on "
            f"{', '.join(member.node_id for member in job.preemption.reserved)}"
        )
    if job.state == job_life.RUNNING and job.spec.allocation is None and not job.stop_reason:
        words = f"{idle_words(job, wall_ns)}{_diagnosed(job)}"
        return f"it runs on {', '.join(job.members)} and does not wait{words}"
    text = f"it is {job.state} and waits for {waits_for(job)}"
    nodes = ", ".join(job.members)
    return f"{text} on {nodes}{idle_words(job, wall_ns)}" if nodes else text


def _diagnosed(job: Job) -> str:
    """Return the last diagnosis of the attempt as a clause; empty without one."""
    last = job.diagnoses[-1] if job.diagnoses else None
    if last is None or last.attempt != job.attempt:
        return ""
    return f"; diagnosed: {last.sentence} (muster diagnose {job.job_id} --last)"


def _silent(state: State, job: Job, nodes: list[NodeId]) -> Answer:
    """Explain a job on silent nodes that runs on without a lease.

    Only its node or an operator can tell whether it still runs.
    """
    text = f"{_explain_active(job, state.wall_ns)}; {job_life.silence(nodes)}"
    remedy = (
        f"wait for {nodes[0]}, or, when nothing of it is running any more: muster node dead "
        f"{nodes[0]}"
    )
    return answer(
        state,
        job_id=job.job_id,
        job_state=job.state,
        text=text,
        blockers=[blocker("node silent", len(nodes), ", ".join(nodes))],
        remedy=remedy,
    )


def _serves_on(cluster: Cluster, job: Job) -> str:
    """Return, for a waiting replica, that the model's ready replicas keep serving; empty if none is
    ready.
    """
    model = cluster.models.get(job.spec.serve.model) if job.spec.serve is not None else None
    others = [cluster.jobs[job_id] for job_id in model.jobs] if model is not None else []
    ready = sum(1 for other in others if is_ready(other))
    return (
        (
            f"; the model serves on with {ready} ready replicas, none of which ends before this "
            "one is ready"
        )
        if ready
        else ""
    )
