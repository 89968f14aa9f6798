"""The spans of a job, made of its facts: names, ids and attributes (docs/spans.md).

Pure. Times are arguments: facts give them where they can, so a span tells the time of the decision,
not of its export. Each service records the spans of what it did: quota `admitted`, the scheduler
`of_commit` and `ordered`, audit `archived`, agents those of services/node_agent/jobs/
attempt_spans.py. Tests: tests/unit/test_job_spans.py.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from libs.common.facts import (
    AnyFact,
    Commit,
    JobAdmitted,
    JobClosed,
    JobPlaced,
    JobRejected,
    JobRequeued,
    JobSubmitted,
    UsageCharged,
)
from libs.common.life.job_life import FAILED
from libs.common.messages import StartOrder
from libs.common.model import JobId
from libs.common.spans.recording import INTERNAL, PRODUCER, Span, Value
from libs.common.spans.trace_context import TraceContext, derived_span_id, parse
from libs.common.state.job import Job

JOB: Final = "muster.job"
ATTEMPT: Final = "muster.job.attempt"
ADMIT: Final = "muster.job.admit"
QUEUE: Final = "muster.job.queue"
PLACE: Final = "muster.job.place"
ORDER: Final = "muster.job.order"
START: Final = "muster.job.start"
RUN: Final = "muster.job.run"
RELEASE: Final = "muster.job.release"
CHARGE: Final = "muster.job.charge"
ARCHIVE: Final = "muster.job.archive"
# The outcome of an attempt that another one follows.
REQUEUED: Final = "requeued"


def job_span_id(trace_id: str, job_id: JobId) -> str:
    return derived_span_id(trace_id, JOB, job_id)


def attempt_span_id(trace_id: str, job_id: JobId, attempt: int) -> str:
    return derived_span_id(trace_id, ATTEMPT, job_id, attempt)


def run_context(order: StartOrder, node_id: str) -> TraceContext | None:
    """Return the context for the job's own program: below its run on this node."""
    context = parse(order.trace)
    if context is None:
        return None
    span_id = derived_span_id(context.trace_id, RUN, order.job_id, order.attempt, node_id)
    return TraceContext(context.trace_id, span_id)


def of_job(
    name: str,
    trace: str,
    job_id: JobId,
    start_ns: int,
    end_ns: int,
    attributes: Mapping[str, Value],
    error: str = "",
) -> Span | None:
    """Return a span below the job's own; None if the job is not traced."""
    context = parse(trace)
    if context is None:
        return None
    trace_id = context.trace_id
    return Span(
        name,
        trace_id=trace_id,
        span_id=derived_span_id(trace_id, name, job_id, start_ns),
        parent_id=job_span_id(trace_id, job_id),
        start_ns=start_ns,
        end_ns=end_ns,
        attributes={"muster.job.id": job_id, **attributes},
        error=error,
    )


def of_attempt(
    name: str,
    trace: str,
    job_id: JobId,
    attempt: int,
    start_ns: int,
    end_ns: int,
    attributes: Mapping[str, Value],
    node_id: str = "",
    kind: str = INTERNAL,
    error: str = "",
) -> Span | None:
    """Return a span below one attempt of the job; None if the job is not traced."""
    context = parse(trace)
    if context is None:
        return None
    trace_id = context.trace_id
    where = {"muster.node.id": node_id} if node_id else {}
    return Span(
        name,
        trace_id=trace_id,
        span_id=derived_span_id(trace_id, name, job_id, attempt, node_id),
        parent_id=attempt_span_id(trace_id, job_id, attempt),
        start_ns=start_ns,
        end_ns=end_ns,
        attributes={
            "muster.job.id": job_id,
            "muster.job.attempt": attempt,
            **where,
            **attributes,
        },
        kind=kind,
        error=error,
    )


def admitted(jobs: Mapping[JobId, Job], facts: Iterable[AnyFact], now_ns: int) -> list[Span]:
    """Return quota's spans of facts that the log has just acknowledged."""
    found: list[Span | None] = []
    for fact in facts:
        if not isinstance(fact, JobAdmitted | JobRejected | UsageCharged):
            continue
        job = jobs.get(fact.job_id)
        if job is None or not job.trace:
            continue
        name, start_ns, why = ADMIT, job.submitted_ns, ""
        more: dict[str, Value] = {"muster.tenant": job.tenant}
        if isinstance(fact, JobRejected):
            why = fact.reason
        elif isinstance(fact, UsageCharged):
            name, start_ns = CHARGE, job.ended_ns or now_ns
            more["muster.job.attempt"] = fact.attempt
        found.append(of_job(name, job.trace, job.job_id, start_ns, now_ns, more, why))
    return [span for span in found if span is not None]


def requeued(jobs: Mapping[JobId, Job], commit: Commit) -> list[Span]:
    """Return the spans of attempts that a commit ends with a further attempt.

    `jobs` are those before the commit: after it the job shows the next attempt.
    """
    found: list[Span] = []
    for fact in commit.facts:
        if not isinstance(fact, JobRequeued):
            continue
        job = jobs.get(fact.job_id)
        if job is not None and job.attempt == fact.attempt:
            found += _attempt(job, REQUEUED, fact.reason, commit.at_ns)
    return found


def of_commit(jobs: Mapping[JobId, Job], commit: Commit, now_ns: int) -> list[Span]:
    """Return the other spans that a commit of the scheduler ends; `jobs` are those after it."""
    found: list[Span | None] = []
    for fact in commit.facts:
        if not isinstance(fact, JobPlaced | JobClosed):
            continue
        job = jobs.get(fact.job_id)
        if job is None or job.attempt != fact.attempt:
            continue
        if isinstance(fact, JobPlaced):
            found += _placed(job, fact, commit.at_ns, now_ns)
        else:
            found += _attempt(job, fact.outcome, fact.reason, commit.at_ns)
            found += _closed(job, fact, commit.at_ns)
    return [span for span in found if span is not None]


def _placed(job: Job, fact: JobPlaced, at_ns: int, now_ns: int) -> list[Span | None]:
    nodes = [member.node_id for member in fact.members]
    placement: dict[str, Value] = {
        "muster.placement.nodes": len(nodes),
        "muster.placement.gpus": sum(len(member.gpus) for member in fact.members),
        "muster.placement.node_ids": ",".join(nodes),
    }
    queue = {"muster.queue": job.spec.queue, "muster.tenant": job.tenant}
    ref = (job.trace, job.job_id, fact.attempt)
    return [
        of_attempt(QUEUE, *ref, start_ns=job.queued_ns, end_ns=at_ns, attributes=queue),
        of_attempt(PLACE, *ref, start_ns=at_ns, end_ns=now_ns, attributes=placement),
    ]


def _attempt(job: Job, outcome: str, reason: str, at_ns: int) -> list[Span]:
    """Return the span of the job's present attempt, which ends now; none if it was not placed."""
    context = parse(job.trace)
    if context is None or not job.placed_ns:
        return []
    trace_id = context.trace_id
    span = Span(
        ATTEMPT,
        trace_id=trace_id,
        span_id=attempt_span_id(trace_id, job.job_id, job.attempt),
        parent_id=job_span_id(trace_id, job.job_id),
        start_ns=job.queued_ns,
        end_ns=at_ns,
        attributes={
            "muster.job.id": job.job_id,
            "muster.job.attempt": job.attempt,
            "muster.job.outcome": outcome,
        },
        error=_error(outcome, reason),
    )
    return [span]


def _closed(job: Job, fact: JobClosed, at_ns: int) -> list[Span]:
    """Return the span of the whole job, below the request that submitted it or below its array."""
    context = parse(job.trace)
    if context is None:
        return []
    trace_id = context.trace_id
    span = Span(
        JOB,
        trace_id=trace_id,
        span_id=job_span_id(trace_id, job.job_id),
        parent_id=job_span_id(trace_id, job.array) if job.array else context.span_id,
        start_ns=job.submitted_ns,
        end_ns=at_ns,
        attributes={
            "muster.job.id": job.job_id,
            "muster.job.name": job.spec.name,
            "muster.job.outcome": fact.outcome,
            "muster.job.attempts": job.attempt,
            "muster.job.nodes": job.spec.nodes,
            "muster.job.gpus_per_node": job.spec.gpus,
            "muster.tenant": job.tenant,
            "muster.user": job.user,
        },
        error=_error(fact.outcome, fact.reason),
    )
    return [span]


def _error(outcome: str, reason: str) -> str:
    return (reason or outcome) if outcome in (FAILED, REQUEUED) else ""


def ordered(order: StartOrder, node_id: str, acked_ns: int, now_ns: int) -> Span | None:
    """Return the span of an order on its way: from the acknowledged placement to its sending."""
    return of_attempt(
        ORDER,
        order.trace,
        order.job_id,
        order.attempt,
        start_ns=acked_ns,
        end_ns=now_ns,
        attributes={"muster.job.rank": order.rank},
        node_id=node_id,
        kind=PRODUCER,
    )


def archived(commit: Commit, now_ns: int) -> list[Span]:
    """Return audit's spans of the jobs that an archived commit submitted."""
    found = [
        of_job(
            ARCHIVE, fact.trace, fact.job_id, start_ns=commit.at_ns, end_ns=now_ns, attributes={}
        )
        for fact in commit.facts
        if isinstance(fact, JobSubmitted)
    ]
    return [span for span in found if span is not None]
