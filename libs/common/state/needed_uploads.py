"""The uploads that a cluster still needs. Pure. Tests: tests/unit/test_needed_uploads.py."""

from collections.abc import Iterable, Iterator

from libs.common.life import job_life
from libs.common.state.cluster import Cluster, Job

Uploads = dict[tuple[str, str], None]


def needed_uploads(cluster: Cluster) -> Uploads:
    """Return the uploads, by tenant and hash, that active jobs and deployed models use."""
    return dict.fromkeys((*of_jobs(cluster.jobs.values()), *of_models(cluster)))


def of_jobs(jobs: Iterable[Job]) -> Iterator[tuple[str, str]]:
    """Iterate over the uploads of those jobs that are active."""
    return ((job.tenant, job.spec.upload) for job in jobs if job.state not in job_life.ENDED)


def of_models(cluster: Cluster) -> Iterator[tuple[str, str]]:
    """Iterate over the uploads of deployed models."""
    return ((each.tenant, each.spec.upload) for each in cluster.models.values() if each.deployed)
