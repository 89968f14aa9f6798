"""The spans of a job: which facts end them, how they hang together, and what is not traced."""

from msgspec.structs import replace

from libs.common import arrays, subjects
from libs.common import facts as f
from libs.common.facts import AnyFact, Commit
from libs.common.messages import StartOrder
from libs.common.model import JobId, TenantId
from libs.common.spans import job_spans
from libs.common.spans.recording import Span
from libs.common.spans.trace_context import TraceContext
from libs.common.state.cluster import Cluster
from tests.given import ended, given, member, placed, registered, spec, started, tell, waiting

TRACE = "0af7651916cd43dd8448eb211c80319c"
REQUEST = "b7ad6b7169203331"
CONTEXT = TraceContext(TRACE, REQUEST).text
JOB = JobId("j1")
S = 1_000_000_000


def traced(job: str = "j1", **fields: object) -> list[AnyFact]:
    submitted, *rest = waiting(job, **fields)
    assert isinstance(submitted, f.JobSubmitted)
    return [replace(submitted, trace=CONTEXT), *rest]


def commit(*facts: AnyFact, at_s: int = 9) -> Commit:
    return Commit(
        version=f.VERSION,
        min_reader=f.VERSION,
        writer=subjects.SCHEDULER,
        number=1,
        epoch=1,
        at_ns=at_s * S,
        seen=0,
        facts=facts,
    )


def folded(cluster: Cluster, *facts: AnyFact, at_s: int) -> list[Span]:
    """The spans of a commit of the scheduler, which is folded."""
    one = commit(*facts, at_s=at_s)
    before = job_spans.requeued(cluster.jobs, one)
    for fact in facts:
        tell(cluster, fact, at_s)
    return before + job_spans.of_commit(cluster.jobs, one, at_s * S + 5)


def running() -> Cluster:
    cluster = given(registered("n1"), traced()).cluster
    folded(cluster, placed("j1", member("n1", 0)), at_s=2)
    tell(cluster, started("j1", "n1"), 3)
    return cluster


def test_a_placement_ends_the_wait_in_the_queue() -> None:
    cluster = given(registered("n1"), traced(queue="night")).cluster
    queue, place = folded(cluster, placed("j1", member("n1", 0, 1)), at_s=2)
    assert (queue.name, queue.start_ns, queue.end_ns) == ("muster.job.queue", 0, 2 * S)
    assert queue.attributes["muster.queue"] == "night"
    assert (place.name, place.start_ns, place.end_ns) == ("muster.job.place", 2 * S, 2 * S + 5)
    assert place.attributes["muster.placement.gpus"] == 2
    attempt = job_spans.attempt_span_id(TRACE, JOB, 1)
    assert (queue.parent_id, place.parent_id) == (attempt, attempt)


def test_a_closed_job_has_its_attempt_below_it_and_its_request_above() -> None:
    cluster = running()
    for fact in ended("j1", "n1")[1:]:
        tell(cluster, fact, 4)
    closed = f.JobClosed(job_id=JOB, attempt=1, outcome="completed", exit_code=0)
    attempt, job = folded(cluster, closed, at_s=5)
    assert (attempt.name, attempt.parent_id) == ("muster.job.attempt", job.span_id)
    assert attempt.span_id == job_spans.attempt_span_id(TRACE, JOB, 1) and not attempt.error
    assert (job.name, job.trace_id, job.parent_id) == ("muster.job", TRACE, REQUEST)
    assert (job.start_ns, job.end_ns, job.error) == (0, 5 * S, "")


def test_a_requeued_attempt_is_a_failed_span_of_its_own() -> None:
    cluster = running()
    for fact in ended("j1", "n1", exit_code=1)[1:]:
        tell(cluster, fact, 4)
    again = f.JobRequeued(job_id=JOB, attempt=1, reason="failed", counted=True)
    (attempt,) = folded(cluster, again, at_s=5)
    assert (attempt.attributes["muster.job.outcome"], attempt.error) == ("requeued", "failed")
    queue, _ = folded(cluster, placed("j1", member("n1", 0), attempt=2), at_s=7)
    assert (queue.start_ns, queue.end_ns) == (5 * S, 7 * S)
    assert queue.parent_id == job_spans.attempt_span_id(TRACE, JOB, 2)


def test_a_job_that_was_never_placed_has_no_attempt() -> None:
    cluster = given(registered("n1"), traced()).cluster
    closed = f.JobClosed(job_id=JOB, attempt=1, outcome="failed")
    (job,) = folded(cluster, closed, at_s=5)
    assert (job.name, job.error) == ("muster.job", "failed")


def test_an_element_is_below_its_array() -> None:
    cluster = given(registered("n1"), traced(array=arrays.parse("0-1"))).cluster
    begun = f.ElementBegun(
        job_id=JobId("j1_0"),
        array=JOB,
        number=0,
        tenant=TenantId("default"),
        priority=0,
        time_limit_s=0,
    )
    tell(cluster, begun, 1)
    closed = f.JobClosed(job_id=JobId("j1_0"), attempt=1, outcome="cancelled")
    (element,) = folded(cluster, closed, at_s=2)
    assert element.parent_id == job_spans.job_span_id(TRACE, JOB)


def test_a_job_without_a_trace_has_no_spans() -> None:
    cluster = given(registered("n1"), waiting("j1")).cluster
    assert folded(cluster, placed("j1", member("n1", 0)), at_s=2) == []
    closed = f.JobClosed(job_id=JOB, attempt=1, outcome="completed")
    assert folded(cluster, closed, at_s=3) == []
    assert job_spans.admitted(cluster.jobs, [f.JobAdmitted(job_id=JOB)], S) == []
    submitted = waiting("j1")[0]
    assert job_spans.archived(commit(submitted), S) == []


def test_facts_of_another_attempt_or_job_end_no_span() -> None:
    cluster = running()
    assert folded(cluster, f.JobClosed(job_id=JOB, attempt=7, outcome="failed"), at_s=4) == []
    assert (
        folded(cluster, f.JobRequeued(job_id=JOB, attempt=7, reason="x", counted=True), at_s=4)
        == []
    )
    assert folded(cluster, f.JobQueued(job_id=JOB), at_s=4) == []
    assert (
        folded(cluster, f.JobClosed(job_id=JobId("j9"), attempt=1, outcome="failed"), at_s=4) == []
    )


def test_quota_records_admission_rejection_and_charge() -> None:
    cluster = given(registered("n1"), traced()).cluster
    charge = f.UsageCharged(job_id=JOB, attempt=1, tenant=TenantId("default"), share_ms=5)
    facts = [
        f.JobAdmitted(job_id=JOB),
        f.JobRejected(job_id=JOB, reason="over budget"),
        charge,
        f.QuotaTermBegan(instance="a"),
    ]
    admit, reject, charged = job_spans.admitted(cluster.jobs, facts, 3 * S)
    assert (admit.name, admit.start_ns, admit.end_ns, admit.error) == (
        job_spans.ADMIT,
        0,
        3 * S,
        "",
    )
    assert (reject.name, reject.error) == (job_spans.ADMIT, "over budget")
    assert (charged.name, charged.attributes["muster.job.attempt"]) == (job_spans.CHARGE, 1)
    assert {span.parent_id for span in (admit, reject, charged)} == {
        job_spans.job_span_id(TRACE, JOB)
    }


def test_audit_records_the_archived_submission() -> None:
    (span,) = job_spans.archived(commit(*traced()), 9 * S + 7)
    assert (span.name, span.start_ns, span.end_ns) == (job_spans.ARCHIVE, 9 * S, 9 * S + 7)


def order(trace: str) -> StartOrder:
    return StartOrder(
        job_id=JOB,
        attempt=1,
        incarnation=1,
        seq=1,
        rank=1,
        gpus=(),
        spec=spec(),
        tenant="default",
        user="",
        peers=(),
        port=0,
        trace=trace,
    )


def test_an_order_is_a_span_of_its_node() -> None:
    one, other = (job_spans.ordered(order(CONTEXT), node, S, 2 * S) for node in ("n1", "n2"))
    assert one is not None and other is not None
    assert one.span_id != other.span_id and one.attributes["muster.node.id"] == "n1"
    assert job_spans.ordered(order(""), "n1", S, 2 * S) is None


def test_the_job_s_own_spans_hang_below_its_run() -> None:
    found = job_spans.run_context(order(CONTEXT), "n1")
    run = job_spans.of_attempt("muster.job.run", CONTEXT, JOB, 1, 0, 1, {}, node_id="n1")
    assert found is not None and run is not None
    assert found == TraceContext(TRACE, run.span_id)
    assert job_spans.run_context(order(""), "n1") is None
