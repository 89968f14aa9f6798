"""Apply facts about the times of allocations: one function per kind, named after it.

Pure and total, called by `fold.apply` only. The latest time counts, whatever happened to the
attempt meanwhile, so both kinds commute with the scheduler's decisions.
"""

from libs.common import facts as f
from libs.common.change import IGNORED, Change, Stamp
from libs.common.state.cluster import Cluster, Job


def extended(cluster: Cluster, fact: f.AllocationExtended, stamp: Stamp) -> Change:
    job = _allocation(cluster, fact)
    if job is None or fact.expires_ns <= job.expires_ns:
        return IGNORED
    job.expires_ns = fact.expires_ns
    return Change((fact.job_id,))


def warned(cluster: Cluster, fact: f.AllocationWarned, stamp: Stamp) -> Change:
    job = _allocation(cluster, fact)
    if job is None or fact.expires_ns <= job.warned_ns:
        return IGNORED
    job.warned_ns = fact.expires_ns
    return Change((fact.job_id,))


def _allocation(cluster: Cluster, fact: f.AllocationExtended | f.AllocationWarned) -> Job | None:
    job = cluster.jobs.get(fact.job_id)
    return (
        job
        if job is not None and job.spec.allocation is not None and job.attempt == fact.attempt
        else None
    )
