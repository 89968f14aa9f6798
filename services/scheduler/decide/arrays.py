"""The next element of a job array, and the array's end.

Pure. An array waits in the queue for its elements. When `place` reaches it and it fits, the next
element begins, waits at the same position and is placed like any job. No other rule knows arrays.
In a short array, a batch of elements begins as one job. It has as many elements as can run where it
fits: a batch that would have to wait would let the array begin the next one.
"""

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from libs.common import arrays, element_runs
from libs.common.facts import ElementBegun, JobClosed
from libs.common.life import job_life
from libs.common.reasons import CANCELLED
from libs.common.state.cluster import Job

# Each batch gets so small a part of what is left, for as many batches as run at a time, that the
# last ones end at about the same time. How many run is not known without a limit.
WAVES: Final = 2
AT_A_TIME: Final = 8
BATCH_MIN: Final = 8


def next_element(job: Job, fits: Callable[[Job], bool]) -> ElementBegun:
    """Return the fact that begins the array's next element, or its next batch.

    `fits` returns whether a batch could be placed now. The caller found that a batch of
    one element could be.
    """
    assert job.spec.array is not None and job.elements is not None
    number = arrays.number_at(job.spec.array, job.elements.begun)
    begun = ElementBegun(
        job_id=arrays.element_id(job.job_id, number),
        array=job.job_id,
        number=number,
        tenant=job.tenant,
        priority=job.spec.priority,
        time_limit_s=job.spec.time_limit_s,
    )
    if not job.spec.array.short:
        return begun
    count = _size_that_fits(job, fits)
    return replace(
        begun,
        job_id=arrays.batch_id(job.job_id, job.spec.array, job.elements.begun, count),
        time_limit_s=_limit_s(job, count),
        count=count,
    )


def _size_that_fits(job: Job, fits: Callable[[Job], bool]) -> int:
    """Return how many elements the next batch has, so that it ends before nodes are needed for
    others. The size is halved until it fits.
    """
    size = _batch_size(job)
    if job.spec.time_limit_s:
        while size > 1 and not fits(_as_batch(job, size)):
            size //= 2
    return size


def _as_batch(job: Job, count: int) -> Job:
    """Return the array as a job that has the time limit of a batch of this size."""
    spec = replace(job.spec, time_limit_s=_limit_s(job, count))
    return replace(job, spec=spec, elements=None)


def _limit_s(job: Job, count: int) -> int:
    return element_runs.batch_limit_s(job.spec.time_limit_s, count, job.spec.grace_s)


def _batch_size(job: Job) -> int:
    """Return how many elements the next batch has."""
    assert job.spec.array is not None and job.elements is not None
    at_a_time = job.spec.array.at_once or max(AT_A_TIME, len(job.elements.alive) + 1)
    size = max(BATCH_MIN, job.waiting // (WAVES * at_a_time))
    return min(size, job.waiting, element_runs.BATCH_MAX)


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
