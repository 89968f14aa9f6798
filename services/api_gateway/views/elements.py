"""The elements of an array as the API shows them, each with its state and exit code.

Pure. Tests: tests/unit/test_elements_shown.py.
"""

from bisect import bisect_right
from collections.abc import Iterator
from typing import Final

import msgspec

from libs.common import arrays, element_runs
from libs.common.life import job_life
from libs.common.model import JobId
from libs.common.reasons import CANCELLED, ELEMENT_LOST
from libs.common.state.cluster import Cluster, Job

UNKNOWN: Final = "unknown"
FORGOTTEN: Final = "ended long ago: read its facts with muster log --job"


class ElementShown(msgspec.Struct):
    """One element of an array.

    `job` is the job that runs it: its own, or its batch in a short array; empty before it begins.
    `state` is unknown for an element that ended so long ago that the live state has forgotten it.
    """

    number: int
    state: str
    exit_code: int | None
    reason: str
    job: str


class ElementList(msgspec.Struct):
    elements: list[ElementShown]
    next: int | None
    seq: int


def elements_shown(cluster: Cluster, array: Job, after: int, limit: int) -> list[ElementShown]:
    """Return the elements from place `after` on, in the array's order, at most `limit`."""
    spec, elements = array.spec.array, array.elements
    assert spec is not None and elements is not None
    last = min(after + limit, arrays.count(spec))
    begun = min(last, elements.begun)
    rows = _of_batches if spec.short else _of_jobs
    shown = list(rows(cluster, array, after, begun)) if after < begun else []
    is_over = array.state in job_life.ENDED
    state, reason = (job_life.CANCELLED, CANCELLED) if is_over else (job_life.QUEUED, "")
    return shown + [
        ElementShown(arrays.number_at(spec, place), state, None, reason, job="")
        for place in range(max(after, begun), last)
    ]


def batch_of(array: Job, place: int) -> JobId:
    """Return the batch of a short array that has the element at this place."""
    elements = array.elements
    assert elements is not None
    at = bisect_right(list(elements.batches.values()), place) - 1
    return list(elements.batches)[at]


def words_of_short(array: Job, element_id: JobId) -> str:
    """Return where the element of a short array is seen, because it is no job; else empty."""
    spec, elements = array.spec.array, array.elements
    number = arrays.element_of(element_id)[1]
    if spec is None or elements is None or not spec.short:
        return ""
    place = arrays.place_of(spec, number)
    if place < 0:
        return f"array {array.job_id} has no element {number}: it has {arrays.written(spec)}"
    listed = f"`muster ps --elements {array.job_id}` shows its state"
    if place >= elements.begun:
        return f"{element_id} is an element of a short array and has not begun: {listed}"
    batch = batch_of(array, place)
    return (
        f"{element_id} is an element of a short array, and no job of its own: {listed}, and "
        f"`muster logs {batch}` its output, below the line == element {number} =="
    )


def no_output(array: Job) -> str:
    """Return whose output to read instead of an array's."""
    found = f"array {array.job_id} has no output of its own: name one of its"
    if array.spec.array is not None and array.spec.array.short:
        return f"{found} batches, which `muster ps --elements {array.job_id}` shows"
    return f"{found} elements, {array.job_id}_NUMBER"


def _of_jobs(cluster: Cluster, array: Job, first: int, end: int) -> Iterator[ElementShown]:
    assert array.spec.array is not None
    for place in range(first, end):
        number = arrays.number_at(array.spec.array, place)
        job = cluster.jobs.get(arrays.element_id(array.job_id, number))
        if job is None:
            yield ElementShown(number, UNKNOWN, None, FORGOTTEN, job="")
        else:
            yield ElementShown(number, job.state, job.exit_code, job.reason, job=job.job_id)


def _of_batches(cluster: Cluster, array: Job, first: int, end: int) -> Iterator[ElementShown]:
    assert array.spec.array is not None and array.elements is not None
    names, places = list(array.elements.batches), list(array.elements.batches.values())
    for at in range(bisect_right(places, first) - 1, len(names)):
        if places[at] >= end:
            break
        behind = places[at + 1] if at + 1 < len(names) else array.elements.begun
        rows = _of_batch(cluster.jobs.get(names[at]), behind - places[at])
        for place, (state, code, reason) in enumerate(rows, places[at]):
            if first <= place < end:
                number = arrays.number_at(array.spec.array, place)
                yield ElementShown(number, state, code, reason, job=names[at])


def _of_batch(job: Job | None, count: int) -> list[tuple[str, int | None, str]]:
    """Return state, exit code and reason of each element of a batch."""
    if job is None:
        return [(UNKNOWN, None, FORGOTTEN)] * count
    if job.batch is None:  # an older scheduler began it as an ordinary element
        return [(job.state, job.exit_code, job.reason)] * count
    rows: list[tuple[str, int | None, str]] = [
        (
            element_runs.state_of(result),
            element_runs.shell_code(result),
            element_runs.reason_of(result) if result else "",
        )
        for result in element_runs.listed(job.batch.runs)
    ]
    rest = count - len(rows)
    if job.state in (job_life.COMPLETED, job_life.FAILED):
        return rows + [(job_life.FAILED, None, ELEMENT_LOST)] * rest
    if job.state in job_life.ENDED:
        return rows + [(job.state, None, job.reason)] * rest
    return [*rows, (job.state, None, ""), *[(job_life.QUEUED, None, "")] * (rest - 1)][:count]
