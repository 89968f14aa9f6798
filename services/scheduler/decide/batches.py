"""The end of an attempt of a batch of elements: what has ended counts, and the rest begins again.

Pure. The rules of `attempts.py` say whether another attempt follows. It begins behind the elements
that have a result. If the job may not be tried again, elements that had begun are lost, and the
next attempt begins behind them. Tests: tests/unit/test_short_arrays.py, test_batch_ends.py.
"""

from msgspec.structs import replace

from libs.common import element_runs, reasons
from libs.common.facts import JobClosed, JobRequeued
from libs.common.life import job_life
from libs.common.state.cluster import Cluster, Job, known_to_agent
from services.scheduler.decide.attempts import ATTEMPTS_MAX, back_off_ns, settled, tries


def batch_settled(cluster: Cluster, job: Job, wall_ns: int) -> JobClosed | JobRequeued:
    """Return the fact that ends an attempt of a batch after its member ended, at `wall_ns`."""
    batch = job.batch
    assert batch is not None
    if batch.done == batch.count:
        return _ended(job)
    fact = settled(job, wall_ns)
    if isinstance(fact, JobRequeued):
        return _requeued(cluster, job, fact, wall_ns)
    if fact.outcome == job_life.FAILED and _goes_on(cluster, job, fact):
        return _again(job, fact.reason, batch.begun, wall_ns)
    if _is_repeated(job, fact):
        return _again(job, fact.reason or reasons.ELEMENT_LOST, batch.done, wall_ns)
    if fact.outcome == job_life.COMPLETED:
        fact = replace(fact, outcome=job_life.FAILED, reason=reasons.ELEMENT_LOST)
    return replace(fact, exit_code=element_runs.first_failure(batch.runs), elements=batch.done)


def _requeued(
    cluster: Cluster, job: Job, fact: JobRequeued, wall_ns: int
) -> JobClosed | JobRequeued:
    """Return the fact with the place of the next attempt, or the end of the job if it has none.

    Without `requeue`, only a stop that was asked for gives an element that had begun another
    attempt, and only if nothing else ended it.
    """
    batch = job.batch
    assert batch is not None
    faults = [
        member.reason for member in job.members.values() if member.reason in reasons.BY_THE_MACHINE
    ]
    is_asked = fact.reason in (*reasons.GOES_ON, reasons.REQUEUED) and not faults
    if job.spec.requeue or is_asked:
        if fact.reason == reasons.LEASE_EXPIRED and not job.started_ns:
            return _again(job, fact.reason, batch.done, wall_ns)
        return replace(fact, elements=batch.done)
    if batch.begun < batch.count and not _is_unknown(cluster, job):
        return replace(fact, elements=batch.begun)
    return JobClosed(
        job_id=job.job_id,
        attempt=job.attempt,
        outcome=job_life.FAILED,
        reason=faults[0] if faults else fact.reason,
        exit_code=element_runs.first_failure(batch.runs),
        elements=batch.done,
    )


def _goes_on(cluster: Cluster, job: Job, fact: JobClosed) -> bool:
    """Return whether elements are left that surely have not begun, and may begin elsewhere.

    What ended the attempt counts for the element that ran.
    """
    batch = job.batch
    assert batch is not None
    return (
        not fact.reason.startswith(reasons.REFUSED)
        and not _is_repeated(job, fact)
        and not _is_unknown(cluster, job)
        and batch.begun < batch.count
        and tries(job) < ATTEMPTS_MAX
    )


def _is_repeated(job: Job, fact: JobClosed) -> bool:
    """Return whether the element that ran begins again, though a job would end here.

    The time limit of a batch is over only if much time passed between its elements. A success
    without all results had them before a power cut.
    """
    is_no_fault = fact.outcome == job_life.COMPLETED or fact.reason == reasons.TIME_LIMIT
    may_go_on = job.spec.requeue and job.cancel is None
    return is_no_fault and may_go_on and tries(job) < ATTEMPTS_MAX


def _again(job: Job, reason: str, place: int, wall_ns: int) -> JobRequeued:
    """Return the fact that queues an attempt from this place on.

    If no element was lost, nothing else limits how fast attempts can end, so the job waits first.
    """
    batch = job.batch
    assert batch is not None
    waits = place == batch.done
    return JobRequeued(
        job_id=job.job_id,
        attempt=job.attempt,
        reason=reason,
        counted=False,
        not_before_ns=wall_ns + back_off_ns(max(0, tries(job) - 1)) if waits else 0,
        elements=place,
    )


def _is_unknown(cluster: Cluster, job: Job) -> bool:
    """Return whether any element may have begun, because the journal was not read."""
    is_lost = any(member.reason == reasons.NODE_LOST for member in job.members.values())
    return is_lost and not _never_started(cluster, job)


def _never_started(cluster: Cluster, job: Job) -> bool:
    """Return whether the agent has come back and proves that it never started the attempt.

    A marker on disk precedes each start, so an agent that kept its directory would have listed it.
    A node that was declared lost proves nothing.
    """
    return not job.started_ns and all(
        member.incarnation > cluster.nodes[member.node_id].ended
        and known_to_agent(cluster.nodes[member.node_id], job, member)
        for member in job.members.values()
    )


def _ended(job: Job) -> JobClosed:
    """Return the end of a batch whose elements all have a result."""
    batch = job.batch
    assert batch is not None
    failed = element_runs.failures(batch.runs)
    code = element_runs.first_failure(batch.runs) if failed else 0
    return JobClosed(
        job_id=job.job_id,
        attempt=job.attempt,
        outcome=job_life.FAILED if failed else job_life.COMPLETED,
        reason=f"{failed} of {batch.count} elements failed" if failed else "",
        exit_code=code,
        elements=batch.count,
    )
