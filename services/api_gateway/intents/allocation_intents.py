"""Requests about allocations: devices that are held for a person or another system without a
command.

An allocation is a job whose command only waits. Its placement fields are those of `job_intents.py`.
Pure. Tests: tests/unit/test_gateway_allocation_intents.py.
"""

from collections.abc import Iterable
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
from services.api_gateway.intents import job_intents, placement_fields
from services.api_gateway.intents.fields import check_range, names_of
from services.api_gateway.intents.job_intents import YEAR_S
from services.api_gateway.problems import Problem
from services.api_gateway.times import duration_s, rfc3339

# The duration of an allocation whose request gives none.
EXPIRES_S: Final = 3_600
_NAMES: Final = names_of(JobSpec)
# The placement fields of JobSpec.
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
    *("image", "container"),
    *WHERE,
)
EXTEND_FIELDS: Final = ("by", "user")


def allocation(body: object, job_id: JobId) -> JobSubmitted:
    """Return the fact for `POST /v1/allocations`. Raises Refused.

    `requeue` is false because an allocation never moves: its holder knows only these devices.
    """
    values = job_intents.body_fields(body, FIELDS)
    expires_s = duration_s(values.pop("expires", EXPIRES_S), "expires")
    check_range("expires", expires_s, 1, YEAR_S)
    warn_s = duration_s(values.pop("warn", Allocation(0).warn_s), "warn")
    check_range("warn", warn_s, 0, YEAR_S)
    if values.get("image"):
        values["container"] = _container(values.get("container"))
    fact = job_intents.submission(
        {**values, "command": KEEPER, "requeue": False, "estimate_s": expires_s}, job_id
    )
    fact = replace(fact, spec=replace(fact.spec, allocation=Allocation(expires_s, warn_s)))
    check_fact_size(fact)
    return fact


def _container(given: object) -> object:
    """Return the container of an allocation, which waits with a command of Muster's own.

    Raises Refused.
    """
    if not isinstance(given, dict | None):
        return given
    values = given or {}
    if "entrypoint" in values:
        raise Refused(
            "container.entrypoint: an allocation only waits, with the image's own `sleep`: leave "
            "it out, and run your program with muster exec"
        )
    return {**values, "entrypoint": []}


def extension(body: object, job: Job, cluster: Cluster, own: Iterable[Job]) -> AllocationExtended:
    """Return the fact for `PATCH /v1/allocations/{ref}`. `own` are all allocations of its tenant.

    Raises Refused, and Problem 409 if the allocation has not been placed, was released, its tenant
    has too few GPU hours left, or its nodes are reserved for others before the new end.
    """
    values = job_intents.body_fields({} if body is None else body, EXTEND_FIELDS)
    if "by" not in values:
        raise Refused('by: missing: give the time to add, for example "1h"')
    by_s = duration_s(values["by"], "by")
    check_range("by", by_s, 1, YEAR_S)
    check_allocation(job)
    if (
        job.state not in (job_life.PLACED, job_life.RUNNING)
        or job.stop_reason
        or job.cancel is not None
    ):
        why = (
            f"it is {job.state}, and its time begins when it is placed: extend it then"
            if job.state in (job_life.PENDING, job_life.QUEUED)
            else "it was released or has ended: create a new one"
        )
        text = f"allocation {job.job_id} cannot be extended: {why}"
        raise Problem(409, text, state=job.state, id=job.job_id)
    tenant = cluster.tenants.get(job.tenant)
    if tenant is not None and tenant.gpu_hours:
        _check_budget(cluster, tenant, own, share_of(job) * by_s * 1_000)
    expires_ns = job.expires_ns + by_s * SECOND_NS
    if expires_ns - job.placed_ns > YEAR_S * SECOND_NS:
        raise Refused(
            f"by: the allocation would last longer than {YEAR_S // 86_400} days in all, which is "
            "the maximum: give a shorter time"
        )
    _check_reservations(cluster, job, expires_ns)
    return AllocationExtended(
        job_id=job.job_id,
        attempt=job.attempt,
        expires_ns=expires_ns,
        user=job_intents.take_user(values),
    )


def _check_reservations(cluster: Cluster, job: Job, expires_ns: int) -> None:
    """Raise Problem 409 if the time that is added overlaps with a reservation of others."""
    ends_ns = expires_ns + job.spec.grace_s * SECOND_NS
    for each in cluster.reservations.values():
        if each.is_for(job.spec, job.tenant, job.user) or job.members.keys().isdisjoint(each.nodes):
            continue
        if each.start_ns < ends_ns and job.expires_ns < each.end_ns:
            what = "maintenance" if each.is_maintenance else "reservation"
            text = (
                f"allocation {job.job_id} cannot be extended until {rfc3339(expires_ns)}: the "
                f"{what} {each.name} of its nodes begins at {rfc3339(each.start_ns)}: extend it by "
                "less, or create another allocation"
            )
            raise Problem(409, text)


def _check_budget(cluster: Cluster, tenant: Tenant, own: Iterable[Job], share_ms: int) -> None:
    """Raise Problem 409 if the tenant's budget has less than `share_ms` left."""
    held = [job for job in own if job.state in job_life.ON_NODES]
    left = left_share_ms(cluster, tenant, held)
    if tenant.exhausted or left < share_ms:
        text = (
            f"tenant {tenant.tenant} has {hours(0 if tenant.exhausted else left)} GPU hours left "
            f"of its budget of {tenant.gpu_hours}, and this extension needs {hours(share_ms)}: "
            "extend by less, or ask an administrator for a larger budget"
        )
        raise Problem(409, text)


def check_allocation(job: Job) -> None:
    """Raise Problem 409 if the job runs a command."""
    if job.spec.allocation is None:
        text = (
            f"job {job.job_id} is not an allocation, it runs a command: change it with `muster "
            "update` or end it with `muster cancel`"
        )
        raise Problem(409, text)
