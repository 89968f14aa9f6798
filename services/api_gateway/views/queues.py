"""A queue as the API shows it. Pure."""

import msgspec

from libs.common import job_life
from libs.common.cluster import Cluster
from libs.common.ordering import DEFAULT_QUEUE, JobQueue


class QueueShown(msgspec.Struct):
    """`policy` is empty where the scheduler's own setting holds; `ageing_s` of waiting make up for one step of priority (0: never);
    `backfill`: others may pass its first job where that does not delay it.
    """

    name: str
    policy: str
    weight: int
    ageing_s: int
    backfill: bool
    jobs_waiting: int
    jobs_on_nodes: int


def queue_shown(cluster: Cluster, queue: JobQueue) -> QueueShown:
    jobs = [job for job in cluster.jobs.values() if (job.spec.queue or DEFAULT_QUEUE) == queue.name]
    waiting = sum(job.waiting for job in jobs if job.state in (job_life.PENDING, job_life.QUEUED))
    on_nodes = sum(job.state in job_life.ON_NODES for job in jobs)
    return QueueShown(queue.name, queue.policy, queue.weight, queue.ageing_s, queue.backfill, waiting, on_nodes)
