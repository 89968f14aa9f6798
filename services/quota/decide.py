"""The decisions of quota: admit or reject submissions, charge ended attempts, and exhaust or renew
budgets.

Pure.
"""

from collections.abc import Sequence
from typing import Final

from msgspec import structs

from libs.common.facts import (
    AnyFact,
    BudgetExhausted,
    BudgetRenewed,
    JobAdmitted,
    JobRejected,
    UsageCharged,
)
from libs.common.prices import priced
from libs.common.quantities import counted, month_of
from libs.common.state.cluster import Job, Tenant, tenant_of
from libs.common.state.ordering import AFTER_OF_TENANT_MAX, HOUR_NS
from services.quota.bill import lines_of
from services.quota.state import State

NONE: Final[tuple[AnyFact, ...]] = ()


def decide(state: State, now_ns: int) -> Sequence[AnyFact]:
    """Return the facts of the next decision.

    Admissions come before charges, because users wait for them. `now_ns` is the time of facts.
    """
    return admit(state) or renew(state, now_ns) or charge(state, now_ns) or exhaust(state)


def admit(state: State) -> Sequence[AnyFact]:
    """Admit a job unless its tenant was removed, or has as many waiting jobs, or dependencies, as
    it may.

    An array counts as its elements. Jobs that are not decided yet do not count, so of submissions
    that arrive together the first ones are admitted.
    """
    for job_id in state.undecided:
        job = state.cluster.jobs[job_id]
        tenant = tenant_of(state.cluster, job.tenant)
        if tenant.removed:  # another gateway removed it while this job was submitted
            return (JobRejected(job_id=job_id, reason=_removed(tenant)),)
        waiting = tenant.waiting - state.undecided_of[job.tenant]
        if tenant.waiting_max < waiting + job.waiting:
            return (JobRejected(job_id=job_id, reason=_refusal(tenant, waiting, job)),)
        others = state.dependencies_of[job.tenant] - state.dependencies.get(job_id, 0)
        dependencies = tenant.dependencies - others
        if job.spec.after and dependencies > AFTER_OF_TENANT_MAX:
            return (JobRejected(job_id=job_id, reason=_too_many(tenant, dependencies)),)
        return (JobAdmitted(job_id=job_id),)
    return NONE


def renew(state: State, now_ns: int) -> Sequence[AnyFact]:
    """Renew monthly budgets when a month of UTC has begun.

    Charges made from then on count for that month, whenever the devices were used.
    """
    if state.monthly:
        month = month_of(now_ns)
        for name in state.monthly:
            if state.cluster.tenants[name].month < month:
                return (BudgetRenewed(tenant=name, month=month),)
    return NONE


def charge(state: State, now_ns: int) -> Sequence[AnyFact]:
    """Charge an ended attempt once."""
    for due in state.cluster.uncharged.values():
        job = state.cluster.jobs.get(due.job_id)
        values = structs.asdict(due)
        models = values.pop("models")
        return (
            UsageCharged(
                **values,
                hour=now_ns // HOUR_NS,
                user=job.user if job is not None else "",
                lines=lines_of(job, due),
                parts=priced(models, state.cluster.prices, due.began_ns, due.ended_ns),
            ),
        )
    return NONE


def exhaust(state: State) -> Sequence[AnyFact]:
    """Record, once for each budget, that a tenant's charges have reached its GPU hours."""
    if not state.spent:
        return NONE
    tenant = state.cluster.tenants[min(state.spent)]
    month = tenant.month if tenant.monthly else 0
    return (
        BudgetExhausted(
            tenant=tenant.tenant,
            gpu_hours=tenant.gpu_hours,
            used_share_ms=tenant.budget_share_ms,
            month=month,
        ),
    )


def _removed(tenant: Tenant) -> str:
    return f"tenant {tenant.tenant} was removed: submit the job with a key of another tenant"


def _refusal(tenant: Tenant, waiting: int, job: Job) -> str:
    more = f", and this array has {job.waiting} elements" if job.elements is not None else ""
    return (
        f"tenant {tenant.tenant} may have {counted(tenant.waiting_max, 'job')} waiting and has "
        f"{waiting}{more}: wait for some to start"
    )


def _too_many(tenant: Tenant, dependencies: int) -> str:
    found = (
        f"the jobs of tenant {tenant.tenant} have {dependencies} dependencies, and may "
        f"have {AFTER_OF_TENANT_MAX}"
    )
    return f"{found}: wait for some of these jobs to begin"
