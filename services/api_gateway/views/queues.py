"""A queue as the API shows it. Pure."""

import msgspec

from libs.common.life import job_life
from libs.common.state.cluster import Cluster
from libs.common.state.ordering import DEFAULT_QUEUE, POLICIES, JobQueue
from libs.common.state.plugins import ORDER, ref


class QueueShown(msgspec.Struct):
    """A queue and its numbers of jobs.

    `policy` is empty if the scheduler's default applies. `ageing_s` of waiting raise a job's
    priority by one step (0: never). `backfill`: jobs that do not delay the first job may start
    before it. `time_slice_s`: how long jobs run that take turns (0: none do). `note` says why the
    queue does not use its policy, which comes from a plug-in.
    """

    name: str
    policy: str
    weight: int
    ageing_s: int
    backfill: bool
    jobs_waiting: int
    jobs_on_nodes: int
    note: str = ""
    time_slice_s: int = 0


def queue_shown(cluster: Cluster, queue: JobQueue) -> QueueShown:
    jobs = [job for job in cluster.jobs.values() if (job.spec.queue or DEFAULT_QUEUE) == queue.name]
    waiting = sum(job.waiting for job in jobs if job.state in (job_life.PENDING, job_life.QUEUED))
    on_nodes = sum(job.state in job_life.ON_NODES for job in jobs)
    note = _note(cluster, queue.policy)
    given = (queue.name, queue.policy, queue.weight, queue.ageing_s, queue.backfill)
    return QueueShown(*given, waiting, on_nodes, note, queue.time_slice_s)


def _note(cluster: Cluster, policy: str) -> str:
    if policy in ("", *POLICIES) or cluster.plugins.in_force(ORDER, policy):
        return ""
    version = cluster.plugins.version_of(ORDER, policy)
    why = (
        cluster.plugins.disabled[ref(ORDER, policy, version)]
        if version is not None
        else "the scheduler has no such plug-in"
    )
    return f"goes by the scheduler's default: {why}"
