"""Facts as one principal may read them: without the names of other tenants' jobs. Pure.

`fact_stream.py` decides which facts a principal reads at all. Tests:
tests/attack/test_names_of_others.py, tests/attack/test_details_of_faults.py.
"""

from typing import Final

from msgspec.structs import replace

from libs.common import facts as f
from libs.common.facts import AnyFact, ChargeLine, Unknown
from libs.common.model import JobId, job_of
from libs.common.state.cluster import Cluster, GpuView, Job
from services.api_gateway.access import roles
from services.api_gateway.access.roles import Principal

ANOTHER: Final = JobId("a job of another tenant")


def seen_by(principal: Principal, cluster: Cluster, fact: AnyFact | Unknown) -> AnyFact | Unknown:
    """Return the fact without names of jobs that the principal may not see or that are gone."""
    if roles.sees_all(principal):
        return fact
    if isinstance(fact, f.JobPreempted):
        return (
            fact
            if fact.by == fact.job_id or _sees(principal, cluster, fact.by)
            else replace(fact, by=ANOTHER)
        )
    if isinstance(fact, f.JobPlaced):
        return (
            fact
            if not fact.lender or _sees(principal, cluster, fact.lender)
            else replace(fact, lender=ANOTHER)
        )
    if isinstance(fact, f.NodeLost):
        return replace(fact, over=tuple(job for job in fact.over if _sees(principal, cluster, job)))
    if isinstance(fact, f.NodeRegistered):
        return replace(
            fact,
            attempts=tuple(ref for ref in fact.attempts if _sees(principal, cluster, ref.job_id)),
        )
    if isinstance(fact, f.GpuErrorSeen):
        seen = tuple(ref for ref in fact.jobs if _sees(principal, cluster, ref.job_id))
        is_own = bool(seen) and seen == fact.jobs
        return replace(fact, jobs=seen, detail=fact.detail if is_own else "")
    if isinstance(fact, f.GpuFaulted):
        view = cluster.gpus.get(fact.uuid)
        is_own = view is not None and fact.detail == detail_seen(principal, cluster, view)
        return fact if is_own else replace(fact, detail="")
    if isinstance(fact, f.UsageCharged):
        return replace(fact, lines=tuple(_line_for(principal, line) for line in fact.lines))
    return fact


def _line_for(principal: Principal, line: ChargeLine) -> ChargeLine:
    """Return a line of a charge: of another tenant's keys, its owner sees the tenant alone."""
    is_own = roles.sees(principal, line.tenant)
    return line if is_own else replace(line, user="", key_id="")


def preempted_by(cluster: Cluster, job: Job) -> str:
    """Return the job that this one made room for. A job of another tenant is not named."""
    by = cluster.jobs.get(job.preemption.by)
    return (
        ANOTHER
        if job.preemption.by and (by is None or by.tenant != job.tenant)
        else job.preemption.by
    )


def detail_seen(principal: Principal, cluster: Cluster, view: GpuView) -> str:
    """Return the detail of a device's fault; empty if it may be about another tenant's process.

    It can contain the name and id of a process on the device. Tenants see it while all jobs on the
    device are theirs.
    """
    if roles.sees_all(principal):
        return view.detail
    jobs = [job_of(key) for key in view.holds]
    is_own = bool(jobs) and all(_sees(principal, cluster, job) for job in jobs)
    return view.detail if is_own else ""


def _sees(principal: Principal, cluster: Cluster, job_id: JobId) -> bool:
    job = cluster.jobs.get(job_id)
    return job is not None and roles.sees(principal, job.tenant)
