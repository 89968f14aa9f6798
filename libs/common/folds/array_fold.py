"""Apply facts about arrays: elements begin and end, arrays and elements are cancelled.

Pure and total, called by `fold.apply` and `job_fold.py`. An array is a job that waits in the queue
and is never placed. Its elements begin one by one, in order, each as a job of its own, so elements
that have not begun cost nothing. This module enforces the limit on live elements. Elements of a
short array are no jobs: a batch of them is one, and keeps their results.
"""

from collections import Counter

from msgspec.structs import replace

from libs.common import arrays, element_runs
from libs.common import facts as f
from libs.common.change import IGNORED, Change, Stamp
from libs.common.folds import member_fold, order_fold
from libs.common.life import job_life
from libs.common.model import JobId
from libs.common.state import arrivals
from libs.common.state.cluster import Cancel, Cluster, Job, tenant_of
from libs.common.state.job import Batch


def begun(cluster: Cluster, fact: f.ElementBegun, stamp: Stamp) -> Change:
    array = cluster.jobs.get(fact.array)
    if (
        array is None
        or array.spec.array is None
        or array.elements is None
        or fact.job_id in cluster.jobs
    ):
        return IGNORED
    elements = array.elements
    is_next = fact.number == arrays.number_at(array.spec.array, elements.begun) >= 0
    if not is_next or not _is_named_right(array, fact) or not array.has_room:
        return IGNORED
    number = max(1, fact.count)
    event = "array.element_begun" if array.waiting > number else "array.element_begun:last"
    if not job_life.allows(array.state, event):
        return IGNORED
    array.state = job_life.after(array.state, event)
    batch = Batch(elements.begun, number) if fact.count else None
    if array.spec.array.short:
        elements.batches[fact.job_id] = elements.begun
    if batch is not None:
        tenant_of(cluster, array.tenant).waiting -= number - 1
    elements.begun += number
    elements.alive[fact.job_id] = fact.number
    spec = replace(
        array.spec,
        priority=fact.priority,
        time_limit_s=fact.time_limit_s,
        estimate_s=array.spec.estimate_s * number,
    )
    job = Job(
        job_id=fact.job_id,
        spec=spec,
        tenant=array.tenant,
        user=array.user,
        seq=array.seq,
        state=job_life.QUEUED,
        admitted=True,
        array=fact.array,
        trace=array.trace,
        batch=batch,
    )
    job.submitted_ns, job.queued_ns = array.submitted_ns, stamp.at_ns
    cancels = [
        cancel
        for cancel in (array.cancel, elements.early.pop(fact.job_id, None))
        if cancel is not None
    ]
    job.cancel = min(cancels, default=None)
    cluster.jobs[fact.job_id] = job
    arrivals.note(cluster.arrivals, spec)
    order_fold.queued(cluster, job)
    # The element goes before the rest of its array, even if the tenant's mean run time has changed.
    job.order.usual_ms = array.order.usual_ms
    return Change((fact.array, fact.job_id))


def _is_named_right(array: Job, fact: f.ElementBegun) -> bool:
    """Return whether the id is that of the element, or of the batch of a short array.

    A scheduler that is older than short arrays begins their elements one by one.
    """
    assert array.spec.array is not None and array.elements is not None
    if not fact.count:
        return fact.job_id == arrays.element_id(fact.array, fact.number)
    if not array.spec.array.short or not 0 < fact.count <= min(
        array.waiting, element_runs.BATCH_MAX
    ):
        return False
    place = array.elements.begun
    return fact.job_id == arrays.batch_id(fact.array, array.spec.array, place, fact.count)


def elements_ended(cluster: Cluster, fact: f.ElementsEnded, stamp: Stamp) -> Change:
    """Add results to a batch.

    They count until the attempt is requeued or closed, also after the loss of its node: the fact
    that ends the attempt says how many of them count.
    """
    job = member_fold.current(cluster, fact.job_id, fact.attempt)
    batch = job.batch if job is not None else None
    if job is None or batch is None or fact.node_id not in job.members:
        return IGNORED
    before = batch.done
    added = element_runs.from_place(fact.runs, before - fact.first)
    if not 0 <= fact.first <= before or not element_runs.is_right(fact.runs):
        return IGNORED
    batch.runs = element_runs.until(
        element_runs.joined((*batch.runs, *added)),
        min(batch.count, before + element_runs.count(added)),
    )
    batch.begun = max(batch.begun, batch.done, min(batch.count, fact.begun))
    return Change((fact.job_id, job.array))


def cut(job: Job, place: int) -> None:
    """End an attempt of a batch: only results before `place` count, and are lost if missing."""
    if job.batch is not None:
        job.batch.runs = element_runs.until(job.batch.runs, max(0, min(place, job.batch.count)))
        job.batch.begun = job.batch.done


def ended(cluster: Cluster, job: Job) -> tuple[JobId, ...]:
    """Note the end of an element or a batch. Return its array, or nothing if it has none."""
    array = cluster.jobs.get(job.array)
    if array is None or array.elements is None:
        return ()
    elements = array.elements
    elements.alive.pop(job.job_id, None)
    states = states_of(job)
    for state, number in states.items():
        elements.ended[state] = elements.ended.get(state, 0) + number
    if states[job_life.FAILED] and elements.exit_code is None:
        elements.exit_code = job.exit_code
    return (job.array,)


def states_of(job: Job) -> Counter[str]:
    """Count the elements of a batch by state; any other job counts once.

    Elements without a result end with their batch. While it runs, one of them runs.
    """
    states: Counter[str] = Counter()
    batch = job.batch
    if batch is None:
        return Counter({job.state: 1})
    for number, result in batch.runs:
        states[element_runs.state_of(result)] += number
    rest = batch.count - batch.done
    if job.state == job_life.COMPLETED:
        states[job_life.FAILED] += rest
    elif job.state in job_life.ENDED or not rest:
        states[job.state] += rest
    else:
        states[job.state] += 1
        states[job_life.QUEUED] += rest - 1
    return +states


def cancelled(cluster: Cluster, array: Job, cancel: Cancel) -> tuple[JobId, ...]:
    """Cancel all live elements of a cancelled array, and return them."""
    alive = list(array.elements.alive) if array.elements is not None else []
    for job_id in alive:
        job = cluster.jobs[job_id]
        job.cancel = cancel if job.cancel is None else min(job.cancel, cancel)
    return tuple(alive)


def cancelled_early(cluster: Cluster, job_id: JobId, cancel: Cancel) -> Change:
    """Cancel an element that has not begun: it ends when it begins."""
    name, number = arrays.element_of(job_id)
    array = cluster.jobs.get(name)
    if (
        array is None
        or array.state in job_life.ENDED
        or array.spec.array is None
        or array.spec.array.short
        or array.elements is None
    ):
        return IGNORED
    early = array.elements.early.get(job_id)
    if arrays.place_of(array.spec.array, number) < array.elements.begun or (
        early is not None and early <= cancel
    ):
        return IGNORED
    array.elements.early[job_id] = cancel
    return Change((name,))
