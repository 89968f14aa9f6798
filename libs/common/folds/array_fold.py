"""How facts change arrays: elements begin and end, arrays and elements are cancelled.

Pure and total, called by `fold.apply` and `job_fold.py`. An array is a job that waits in the queue
and is never placed. Its elements begin one by one, in order, each as a job of its own, so elements
that have not begun cost nothing. This module enforces the limit on live elements.
"""

from msgspec.structs import replace

from libs.common import arrays
from libs.common import facts as f
from libs.common.change import IGNORED, Change, Stamp
from libs.common.folds import order_fold
from libs.common.life import job_life
from libs.common.model import JobId
from libs.common.state import arrivals
from libs.common.state.cluster import Cancel, Cluster, Job


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
    if (
        not is_next
        or fact.job_id != arrays.element_id(fact.array, fact.number)
        or not array.has_room
    ):
        return IGNORED
    event = "array.element_begun" if array.waiting > 1 else "array.element_begun:last"
    if not job_life.allows(array.state, event):
        return IGNORED
    array.state = job_life.after(array.state, event)
    elements.begun += 1
    elements.alive[fact.job_id] = fact.number
    spec = replace(array.spec, priority=fact.priority, time_limit_s=fact.time_limit_s)
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


def ended(cluster: Cluster, job: Job) -> tuple[JobId, ...]:
    """Note the end of an element. Return its array, or nothing if the job is not an element."""
    array = cluster.jobs.get(job.array)
    if array is None or array.elements is None:
        return ()
    elements = array.elements
    elements.alive.pop(job.job_id, None)
    elements.ended[job.state] = elements.ended.get(job.state, 0) + 1
    if job.state == job_life.FAILED and elements.exit_code is None:
        elements.exit_code = job.exit_code
    return (job.array,)


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
