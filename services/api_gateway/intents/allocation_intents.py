"""What a request about an allocation means: devices that are held for a person or another system,
as a job that only waits.

Pure, like `intents.py`, whose words about where and when it takes. Held by
tests/unit/test_gateway_allocation_intents.py.
"""

from typing import Final

from msgspec.structs import replace

from libs.common.errors import Refused
from libs.common.facts import AllocationExtended, JobSubmitted, check_fact_size
from libs.common.life import job_life
from libs.common.model import KEEPER, Allocation, JobId, JobSpec
from libs.common.state.budget import hours, left_share_ms, share_of
from libs.common.state.cluster import Cluster, Job
from libs.common.state.ordering import SECOND_NS
from libs.common.state.tenant import Tenant
from services.api_gateway.intents import job_intents as intents
from services.api_gateway.intents import placement_fields
from services.api_gateway.intents.fields import check_range, names_of
from services.api_gateway.intents.job_intents import YEAR_S
from services.api_gateway.problems import Problem
from services.api_gateway.times import duration_s

# So long it is held when nobody says how long.
EXPIRES_S: Final = 3_600
_NAMES: Final = names_of(JobSpec)
# What a job may say of where it runs, as JobSpec has it.
WHERE: Final = (*_NAMES[_NAMES.index("vendor") : _NAMES.index("queue")], *placement_fields.ALIASES)
FIELDS: Final = (
    *(
        "name",
        "labels",
        "user",
        "user_id",
        "nodes",
        "gpus",
        "gpu_share",
        "fraction",
        "priority",
        "queue",
        "reject_if_impossible",
    ),
    *("workdir", "env", "secrets", "start_s", "grace_s", "on_control_loss", "expires", "warn"),
    *WHERE,
)
EXTEND_FIELDS: Final = ("by", "user")


def allocation(body: object, job_id: JobId) -> JobSubmitted:
    """The fact for `POST /v1/allocations`.

    It never moves to other devices: who holds these does not know of those. Raises Refused.
    """
    values = intents.fields_of(body, FIELDS)
    expires_s = duration_s(values.pop("expires", EXPIRES_S), "expires")
    check_range("expires", expires_s, 1, YEAR_S)
    warn_s = duration_s(values.pop("warn", Allocation(0).warn_s), "warn")
    check_range("warn", warn_s, 0, YEAR_S)
    fact = intents.submission(
        {**values, "command": KEEPER, "requeue": False, "estimate_s": expires_s}, job_id
    )
    fact = replace(fact, spec=replace(fact.spec, allocation=Allocation(expires_s, warn_s)))
    check_fact_size(fact)
    return fact


def extension(body: object, job: Job, cluster: Cluster) -> AllocationExtended:
    """The fact for `PATCH /v1/allocations/{ref}`.

    Raises Refused, and Problem 409 for one that has not begun or is given back, or whose tenant has
    not so many GPU hours left.
    """
    values = intents.fields_of({} if body is None else body, EXTEND_FIELDS)
    if "by" not in values:
        raise Refused('by: missing: say how much longer, for instance "1h"')
    by_s = duration_s(values["by"], "by")
    check_range("by", by_s, 1, YEAR_S)
    check_allocation(job)
    if (
        job.state not in (job_life.PLACED, job_life.RUNNING)
        or job.stop_reason
        or job.cancel is not None
    ):
        when = (
            "its time begins when it is placed"
            if job.state in (job_life.PENDING, job_life.QUEUED)
            else "it is given back"
        )
        raise Problem(
            409, f"allocation {job.job_id} is {job.state}: {when}", state=job.state, id=job.job_id
        )
    tenant = cluster.tenants.get(job.tenant)
    if tenant is not None and tenant.gpu_hours:
        _check_budget(cluster, tenant, share_of(job) * by_s * 1_000)
    expires_ns = job.expires_ns + by_s * SECOND_NS
    if expires_ns - job.placed_ns > YEAR_S * SECOND_NS:
        raise Refused(f"by: an allocation lasts at most {YEAR_S // 86_400} days in all")
    return AllocationExtended(
        job_id=job.job_id, attempt=job.attempt, expires_ns=expires_ns, user=intents.user_of(values)
    )


def _check_budget(cluster: Cluster, tenant: Tenant, share_ms: int) -> None:
    """Raises Problem 409."""
    held = [
        job
        for job in cluster.jobs.values()
        if job.spec.allocation is not None and job.state in job_life.ON_NODES
    ]
    left = left_share_ms(cluster, tenant, held)
    if tenant.exhausted or left < share_ms:
        has = (
            f"tenant {tenant.tenant} has {hours(0 if tenant.exhausted else left)} GPU hours left "
            f"of its budget of {tenant.gpu_hours}"
        )
        raise Problem(
            409,
            (
                f"{has}, and this extension would take {hours(share_ms)}: what it holds ends in "
                "its time"
            ),
        )


def check_allocation(job: Job) -> None:
    """Raises Problem 409 for a job that runs a command."""
    if job.spec.allocation is None:
        raise Problem(
            409,
            (
                f"job {job.job_id} is no allocation: it ends when its command does (muster "
                "update, muster cancel)"
            ),
        )
