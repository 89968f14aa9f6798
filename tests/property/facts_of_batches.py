"""Random results of elements of short arrays: what an agent could record now, and invalid ones."""

from random import Random

from libs.common import element_runs
from libs.common import facts as f
from libs.common.model import JobId, NodeId
from libs.common.state.cluster import Job
from tests.property.fact_values import TENANTS

RESULTS = (0, 0, 1, element_runs.SIGNAL_BASE + 9, element_runs.AT_LIMIT)


def of_member(job: Job, node_id: NodeId, chance: Random) -> f.ElementsEnded:
    """Return the next results of a batch, or results of a job that has no elements."""
    done, count = (job.batch.done, job.batch.count) if job.batch is not None else (0, 2)
    more = chance.randint(0, max(0, count - done))
    return f.ElementsEnded(
        job_id=job.job_id,
        attempt=job.attempt,
        node_id=node_id,
        first=done,
        runs=element_runs.of_results(chance.choice(RESULTS) for _ in range(more)),
        begun=min(count, done + more + chance.randrange(2)),
    )


def wild(array: JobId, number: int, job_id: JobId, node_id: NodeId) -> tuple[f.AnyFact, ...]:
    return (
        f.ElementsEnded(
            job_id=job_id,
            attempt=1,
            node_id=node_id,
            first=number,
            runs=((number, number), (1, number), (number, 1)),
            begun=number,
        ),
        f.ElementBegun(
            job_id=JobId(f"{array}_0-{number}"),
            array=array,
            number=0,
            tenant=TENANTS[0],
            count=number + 1,
        ),
        f.JobClosed(job_id=job_id, attempt=1, outcome="failed", elements=number),
        f.JobRequeued(job_id=job_id, attempt=1, reason="lost", counted=False, elements=number),
    )
