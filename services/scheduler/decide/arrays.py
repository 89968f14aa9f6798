"""The next element of a job array, and the array's end.

Pure. An array waits in the queue for its elements. When `place` reaches it and it fits, the next
element begins, waits at the same position and is placed like any job. No other rule knows arrays.
"""

from libs.common import arrays
from libs.common.facts import ElementBegun, JobClosed
from libs.common.life import job_life
from libs.common.reasons import CANCELLED
from libs.common.state.cluster import Job


def next_element(job: Job) -> ElementBegun:
    """Return the fact that begins the array's next element."""
    assert job.spec.array is not None and job.elements is not None
    number = arrays.number_at(job.spec.array, job.elements.begun)
    return ElementBegun(
        job_id=arrays.element_id(job.job_id, number),
        array=job.job_id,
        number=number,
        tenant=job.tenant,
        priority=job.spec.priority,
        time_limit_s=job.spec.time_limit_s,
    )


def array_ended(job: Job) -> JobClosed:
    """Return the end of an array: completed if all its elements completed.

    Its exit code is that of the first element that failed.
    """
    assert job.spec.array is not None and job.elements is not None
    failed, cancelled = (
        job.elements.ended.get(outcome, 0) for outcome in (job_life.FAILED, job_life.CANCELLED)
    )
    total = arrays.count(job.spec.array)
    if failed and job.cancel is None:
        code = job.elements.exit_code
        return _closed(job, job_life.FAILED, f"{failed} of {total} elements failed", code)
    if cancelled or job.cancel is not None:
        return _closed(
            job,
            job_life.CANCELLED,
            f"{cancelled} of {total} elements cancelled" if job.cancel is None else CANCELLED,
            None,
        )
    return _closed(job, job_life.COMPLETED, "", 0)


def _closed(job: Job, outcome: str, reason: str, exit_code: int | None) -> JobClosed:
    return JobClosed(
        job_id=job.job_id, attempt=job.attempt, outcome=outcome, reason=reason, exit_code=exit_code
    )
