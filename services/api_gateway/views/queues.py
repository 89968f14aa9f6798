"""A queue as the API shows it. Tests: tests/unit/test_queue_views.py."""

import asyncio
from collections import Counter
from typing import Final

import msgspec

from libs.common.life import job_life
from libs.common.state.cluster import Cluster
from libs.common.state.ordering import DEFAULT_QUEUE, POLICIES, JobQueue
from libs.common.state.plugins import ORDER, ref

# Jobs that are counted before the loop serves other requests again: less than a millisecond.
SLICE_JOBS: Final = 1_000


class QueueShown(msgspec.Struct):
    """A queue and its numbers of jobs.

    `policy` is empty if none was set; `priority` then applies. `ageing_s` of waiting raise a job's
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


class QueueJobs:
    """The numbers of jobs by the name of their queue."""

    def __init__(self) -> None:
        self.waiting: Counter[str] = Counter()
        self.on_nodes: Counter[str] = Counter()


async def count_jobs(cluster: Cluster) -> QueueJobs:
    """Count the jobs of all queues in one walk that lets other requests be served.

    A job that changes meanwhile is counted as it is when the walk comes to it.
    """
    found = QueueJobs()
    for number, job in enumerate(list(cluster.jobs.values()), start=1):
        if job.state in (job_life.PENDING, job_life.QUEUED):
            found.waiting[job.spec.queue or DEFAULT_QUEUE] += job.waiting
        elif job.state in job_life.ON_NODES:
            found.on_nodes[job.spec.queue or DEFAULT_QUEUE] += 1
        if number % SLICE_JOBS == 0:
            await asyncio.sleep(0)
    return found


def queue_shown(cluster: Cluster, queue: JobQueue, jobs: QueueJobs) -> QueueShown:
    waiting, on_nodes = jobs.waiting[queue.name], jobs.on_nodes[queue.name]
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
