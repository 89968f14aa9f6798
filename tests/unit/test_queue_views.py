"""The numbers of jobs of all queues: one walk that lets other requests be served."""

import asyncio

from libs.common.life import job_life
from libs.common.model import JobId, JobSpec, TenantId
from libs.common.state.cluster import Cluster, Job
from libs.common.state.ordering import DEFAULT_QUEUE, JobQueue
from services.api_gateway.views.queues import SLICE_JOBS, count_jobs, queue_shown


def cluster_of(*jobs: tuple[str, str]) -> Cluster:
    """A cluster with a job for each queue and state."""
    cluster = Cluster()
    for number, (queue, state) in enumerate(jobs):
        job_id = JobId(f"j{number}")
        spec = JobSpec(command=("x",), queue=queue)
        job = Job(job_id=job_id, spec=spec, tenant=TenantId("t"), user="u", seq=number)
        job.state = state
        cluster.jobs[job_id] = job
    return cluster


async def test_jobs_are_counted_by_queue_and_state() -> None:
    ended = next(iter(job_life.ENDED))
    cluster = cluster_of(
        ("", job_life.PENDING),
        ("", job_life.QUEUED),
        (DEFAULT_QUEUE, job_life.RUNNING),
        ("night", job_life.RELEASING),
        ("night", job_life.PLACED),
        ("night", ended),
    )
    jobs = await count_jobs(cluster)
    shown = {
        name: queue_shown(cluster, JobQueue(name), jobs) for name in (DEFAULT_QUEUE, "night", "new")
    }
    numbers = {name: (each.jobs_waiting, each.jobs_on_nodes) for name, each in shown.items()}
    assert numbers == {DEFAULT_QUEUE: (2, 1), "night": (0, 2), "new": (0, 0)}


async def test_other_requests_are_served_while_jobs_are_counted() -> None:
    cluster = cluster_of(*[("", job_life.QUEUED)] * (3 * SLICE_JOBS))
    counting = asyncio.create_task(count_jobs(cluster))
    turns = 0
    while not counting.done():
        await asyncio.sleep(0)
        # The fold goes on, and may add and forget jobs.
        cluster.jobs.pop(JobId(f"j{turns}"), None)
        turns += 1
    assert turns > 3
    assert counting.result().waiting[DEFAULT_QUEUE] == 3 * SLICE_JOBS
