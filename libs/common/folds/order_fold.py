"""Apply facts about queues, dependencies and tenants' use, the inputs of the queue's order.

Pure and total, called by `fold.apply` and `job_fold.py`. A change of a job is folded whatever
happened to the job meanwhile, so that it commutes with the scheduler's decisions.
"""

from msgspec.structs import replace

from libs.common import facts as f
from libs.common.change import IGNORED, Change, Stamp
from libs.common.life import job_life
from libs.common.model import JobId
from libs.common.state.cluster import Cluster, Job, tenant_of
from libs.common.state.ordering import AFTER_OK, FIFO, SINGLETON, JobQueue, decayed

# The mean run time considers about this many of a tenant's last jobs.
RUNS_MAX = 64


def queue_set(cluster: Cluster, fact: f.QueueSet, stamp: Stamp) -> Change:
    backfill = fact.policy != FIFO if fact.backfill is None else fact.backfill
    weight, ageing_s, slice_s = (
        max(1, fact.weight),
        max(0, fact.ageing_s),
        max(0, fact.time_slice_s),
    )
    cluster.queues[fact.queue] = JobQueue(
        name=fact.queue,
        policy=fact.policy,
        weight=weight,
        ageing_s=ageing_s,
        backfill=backfill,
        time_slice_s=slice_s,
    )
    return Change()


def updated(cluster: Cluster, fact: f.JobUpdated, stamp: Stamp) -> Change:
    job = cluster.jobs.get(fact.job_id)
    if job is None:
        return IGNORED
    given = {"priority": fact.priority, "time_limit_s": fact.time_limit_s}
    job.spec = replace(
        job.spec, **{name: value for name, value in given.items() if value is not None}
    )
    if fact.held is not None:
        job.order.held, job.order.held_by = fact.held, fact.user if fact.held else ""
    return Change((fact.job_id,))


def requeue_requested(cluster: Cluster, fact: f.RequeueRequested, stamp: Stamp) -> Change:
    job = cluster.jobs.get(fact.job_id)
    if job is None or fact.attempt <= job.order.requeue:
        return IGNORED
    job.order.requeue = fact.attempt
    return Change((fact.job_id,))


def begin(cluster: Cluster, job: Job) -> None:
    """Note the jobs that a submitted job waits for."""
    job.order.held, job.order.held_by = job.spec.hold, job.user if job.spec.hold else ""
    for kind, other in job.spec.after:
        before = cluster.jobs.get(other) if other != job.job_id else None
        if before is None or before.state in job_life.ENDED:
            _met(job, kind, other, before)
        else:
            _wait(cluster, job, kind, other)
    if job.spec.singleton:
        name = _singleton(job)
        last = cluster.singletons.pop(name, JobId(""))
        cluster.singletons[name] = job.job_id
        if last in cluster.jobs and cluster.jobs[last].state not in job_life.ENDED:
            _wait(cluster, job, SINGLETON, last)


def _singleton(job: Job) -> str:
    return "/".join((job.tenant, job.user, job.spec.name))


def _wait(cluster: Cluster, job: Job, kind: str, other: JobId) -> None:
    kinds = job.order.waits.get(other, ())
    if kind not in kinds:
        job.order.waits[other] = (*kinds, kind)
        cluster.dependents.setdefault(other, {})[job.job_id] = None
        tenant_of(cluster, job.tenant).dependencies += 1


def _met(job: Job, kind: str, other: JobId, before: Job | None) -> None:
    """Note that a dependency has ended. An unknown job does not count as completed."""
    if kind == AFTER_OK and (before is None or before.state != job_life.COMPLETED):
        job.order.in_vain = min(
            job.order.in_vain or other, other
        )  # the same one in every order of their ends


def end(cluster: Cluster, ended: Job) -> tuple[JobId, ...]:
    """Release the jobs that waited for a job that has ended, and return them.

    If a singleton ended while it waited, its successor waits for its predecessors. Each dependency
    costs a constant number of steps.
    """
    waiting = cluster.dependents.pop(ended.job_id, {})
    before = [other for other, kinds in ended.order.waits.items() if SINGLETON in kinds]
    _forget(cluster, ended, before)
    for job_id in waiting:
        job = cluster.jobs[job_id]
        kinds = job.order.waits.pop(ended.job_id)
        tenant_of(cluster, job.tenant).dependencies -= len(kinds)
        for kind in kinds:
            _met(job, kind, ended.job_id, ended)
            for other in before if kind == SINGLETON else ():
                _wait(cluster, job, SINGLETON, other)
    return tuple(waiting)


def _forget(cluster: Cluster, ended: Job, before: list[JobId]) -> None:
    """Remove the dependencies of a job that ended while it waited.

    The singleton before it becomes the last of its name again.
    """
    for other, kinds in ended.order.waits.items():
        tenant_of(cluster, ended.tenant).dependencies -= len(kinds)
        left = cluster.dependents[other]
        del left[ended.job_id]
        if not left:
            del cluster.dependents[other]
    ended.order.waits, ended.order.in_vain = {}, JobId("")
    name = _singleton(ended)
    if cluster.singletons.get(name) == ended.job_id:
        if before:
            cluster.singletons[name] = before[0]
        else:
            del cluster.singletons[name]


def queued(cluster: Cluster, job: Job) -> None:
    """Store the mean run time of the tenant's jobs. Later changes of it do not affect this job."""
    use = tenant_of(cluster, job.tenant).use
    job.order.usual_ms = use.runs_ms // use.runs if use.runs else 0


def charged(cluster: Cluster, fact: f.UsageCharged) -> None:
    """Add a charge to the tenant's decayed use.

    Only quota's facts change the use, so a scheduler that works ahead of the log has the same
    numbers as other readers.
    """
    cluster.use_hour = max(cluster.use_hour, fact.hour)
    use = tenant_of(cluster, fact.tenant).use
    hours = cluster.use_hour - use.hour
    use.hour = cluster.use_hour
    use.gpu = decayed(use.gpu, hours) + fact.share_ms
    use.cpu = decayed(use.cpu, hours) + fact.cpu_ms
    use.memory = decayed(use.memory, hours) + fact.memory_ms


def completed(cluster: Cluster, job: Job) -> None:
    """Add a completed job to the tenant's mean run time. Allocations do not count."""
    use = tenant_of(cluster, job.tenant).use
    run_ms = max((member.run_ms for member in job.members.values()), default=0)
    if not run_ms or job.spec.allocation is not None:
        return
    use.runs, use.runs_ms = use.runs + 1, use.runs_ms + run_ms
    if use.runs >= RUNS_MAX:
        use.runs, use.runs_ms = use.runs // 2, use.runs_ms // 2
