"""The uploads that a cluster still needs. Pure. Tests: tests/unit/test_needed_uploads.py."""

from libs.common.life import job_life
from libs.common.state.cluster import Cluster


def needed_uploads(cluster: Cluster) -> dict[tuple[str, str], None]:
    """Return the uploads, by tenant and hash, that active jobs and deployed models use."""
    needed: dict[tuple[str, str], None] = {
        (job.tenant, job.spec.upload): None
        for job in cluster.jobs.values()
        if job.state not in job_life.ENDED
    }
    for model in cluster.models.values():
        if model.deployed:
            needed[model.tenant, model.spec.upload] = None
    return needed
