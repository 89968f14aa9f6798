"""The end of an attempt of a batch of elements: what has ended counts, and the rest begins again.

Pure. The rules of `attempts.py` say whether another attempt follows. It begins behind the elements
that have a result. If the job may not be tried again, elements that had begun are lost, and the
next attempt begins behind them. Tests: tests/unit/test_short_arrays.py.
"""

from msgspec.structs import replace

from libs.common import element_runs, reasons
from libs.common.facts import JobClosed, JobRequeued
from libs.common.life import job_life
from libs.common.state.cluster import Cluster, Job, known_to_agent
from services.scheduler.decide.attempts import ATTEMPTS_MAX, settled


def batch_settled(cluster: Cluster, job: Job, wall_ns: int) -> JobClosed | JobRequeued:
    """Return the fact that ends an attempt of a batch after its member ended, at `wall_ns`."""
    batch = job.batch
    assert batch is not None
    if batch.done == batch.count:
        return _ended(job)
    fact = settled(job, wall_ns)
    if isinstance(fact, JobRequeued):
        return replace(fact, elements=batch.done)
    if fact.outcome == job_life.FAILED and _goes_on(cluster, job, fact):
        return JobRequeued(
            job_id=job.job_id,
            attempt=job.attempt,
            reason=fact.reason,
            counted=False,
            elements=batch.begun,
        )
    if fact.outcome == job_life.COMPLETED:
        fact = replace(fact, outcome=job_life.FAILED, reason=reasons.ELEMENT_LOST)
    return replace(fact, exit_code=element_runs.first_failure(batch.runs), elements=batch.done)


def _goes_on(cluster: Cluster, job: Job, fact: JobClosed) -> bool:
    """Return whether elements are left that surely have not begun, and may begin elsewhere.

    What ended the attempt counts for the element that ran. Each further attempt loses at least one
    element, or runs some.
    """
    batch = job.batch
    assert batch is not None
    return (
        not fact.reason.startswith(reasons.REFUSED)
        and (fact.reason != reasons.NODE_LOST or _never_started(cluster, job))
        and batch.begun < batch.count
        and job.attempt < ATTEMPTS_MAX
    )


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
