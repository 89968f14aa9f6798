"""Requests about queue order: when a job may start, changes of a waiting job, and queues.

Pure. Jobs and queues are looked up in the fold of this gateway. Tests:
tests/unit/test_gateway_order_intents.py.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from libs.common import arrays
from libs.common.errors import Refused
from libs.common.facts import JobUpdated, QueueSet, RequeueRequested
from libs.common.life import job_life
from libs.common.model import ID_PATTERN, PRIORITY_MAX, JobId, JobSpec, TenantId
from libs.common.state.cluster import Cluster, Job
from libs.common.state.ordering import (
    AFTER,
    AFTER_MAX,
    AFTER_OF_TENANT_MAX,
    DEFAULT_QUEUE,
    POLICIES,
)
from services.api_gateway.access.roles import ADMIN, OPERATOR, Principal
from services.api_gateway.intents import short_arrays
from services.api_gateway.intents.fields import check_known, check_range, convert
from services.api_gateway.problems import Denied, Problem
from services.api_gateway.times import duration_s, moment_ns

YEAR_S: Final = 366 * 86_400
# Fields that users may write instead of a field of JobSpec.
ALIASES: Final = ("deadline", "estimate", "short")
RANGES: Final = (("deadline_ns", 0, 1 << 62), ("estimate_s", 0, YEAR_S))
WEIGHT_MAX: Final = 1_000_000
QUEUE_RANGES: Final = (("weight", 1, WEIGHT_MAX),)
UPDATE_FIELDS: Final = ("priority", "time_limit", "time_limit_s", "user")


class QueueBody(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a queue.

    `ageing`: waiting this long raises a job's priority by one step (0: no ageing). `backfill`: jobs
    that do not delay the first job may start before it (null: in every queue except those with
    policy fifo). `time_slice`: jobs that take turns run this long before they make room for each
    other (0: jobs do not take turns).
    """

    policy: str
    weight: int = 100
    ageing: int | str = 0
    backfill: bool | None = None
    time_slice: int | str = 0


QUEUE_FIELDS: Final = QueueBody.__struct_fields__


def take_aliases(values: dict[str, Any]) -> None:
    """Replace aliases and texts by fields of JobSpec, in place. Raises Refused."""
    if "deadline" in values:
        values["deadline_ns"] = _take_alias(
            values, "deadline", "deadline_ns", lambda text: moment_ns(str(text), "deadline")
        )
    for name in ("estimate", "estimate_s"):
        if name in values:
            values["estimate_s"] = _take_alias(
                values, name, "estimate_s", lambda text: duration_s(text, "estimate")
            )
    if "after" in values:
        values["after"] = dependencies(values["after"])
    if values.get("array") is not None:
        values["array"] = elements(values["array"])
    short_arrays.take_short(values)


def _take_alias(
    values: dict[str, Any], alias: str, name: str, read: Callable[[object], int]
) -> int:
    given = values.pop(alias)
    if alias != name and name in values:
        raise Refused(f"{alias}: {name} is given too, and both mean the same: give one of them")
    return read(given)


def dependencies(given: object) -> list[list[str]]:
    """Return the [kind, job] pairs of `after`. Raises Refused.

    `given` is "afterok:a:b", "afterok:a,afterany:b", or a list of such texts or pairs.
    """
    texts = given.split(",") if isinstance(given, str) else given
    if not isinstance(texts, list):
        raise Refused(
            f"after: {given!r} is not a list of dependencies: write "
            f"{' or '.join(f'{kind}:JOB' for kind in AFTER)}, or a list of these"
        )
    pairs = [[kind, job] for each in texts for kind, job in _pairs(each)]
    if len(pairs) > AFTER_MAX:
        raise Refused(f"after: {len(pairs)} jobs are too many: give at most {AFTER_MAX}")
    return pairs


def elements(given: object) -> dict[str, object]:
    """Return the fields of Array for a text such as "0-99%4". Raises Refused."""
    if not isinstance(given, str | int) or isinstance(given, bool):
        raise Refused(f"array: {arrays.EXPECTED}")
    try:
        found: dict[str, object] = msgspec.to_builtins(arrays.parse(str(given)))
    except ValueError as error:
        raise Refused(f"array: {str(given)[:64]!r}: {error}") from None
    return found


def _pairs(given: object) -> list[tuple[str, str]]:
    words = given.split(":") if isinstance(given, str) else given
    if (
        not isinstance(words, list)
        or len(words) < 2
        or not all(isinstance(word, str) and word for word in words)
        or words[0] not in AFTER
    ):
        raise Refused(
            f"after: {given!r} is not a dependency: write "
            f"{' or '.join(f'{kind}:JOB' for kind in AFTER)}"
        )
    return [(words[0], job) for job in words[1:]]


def check_order(cluster: Cluster, spec: JobSpec, named: Callable[[str], JobId]) -> JobSpec:
    """Return the spec with job ids instead of job names in `after`.

    Raises Refused for an unknown queue, and Problem for an unknown job.
    """
    if spec.queue not in ("", DEFAULT_QUEUE):
        check_known([spec.queue], {*cluster.queues, DEFAULT_QUEUE}, "queue")
    if spec.singleton and not spec.name:
        raise Refused(
            "singleton: the job has no name, and a singleton runs only while no other job of its "
            "name and user does: give name"
        )
    if spec.array is not None and spec.stdin:
        raise Refused("stdin: an array has no standard input: leave out stdin")
    return (
        replace(spec, after=tuple((kind, named(ref)) for kind, ref in spec.after))
        if spec.after
        else spec
    )


def check_dependencies(cluster: Cluster, spec: JobSpec, tenant: TenantId) -> None:
    """Raise Problem 429 if the tenant's jobs would have too many dependencies in all."""
    known = cluster.tenants.get(tenant)
    has, more = known.dependencies if known is not None else 0, len(spec.after)
    if more and has + more > AFTER_OF_TENANT_MAX:
        text = (
            f"after: the jobs of tenant {tenant} have {has} dependencies, and may have "
            f"{AFTER_OF_TENANT_MAX}: {more} more are too many: wait until some of these jobs "
            "begin, or cancel some"
        )
        raise Problem(429, text)


def update(values: dict[str, Any], job: Job, user: str) -> JobUpdated | None:
    """Return the fact for `PATCH /v1/jobs/{ref}`; None if nothing changes.

    Raises Refused, and Problem 409 for a new time limit of a job that has begun or of a batch.
    """
    limits = [
        duration_s(values[name], name) for name in ("time_limit", "time_limit_s") if name in values
    ]
    priority, limit_s = values.get("priority"), next(iter(limits), None)
    if priority is None and limit_s is None:
        raise Refused("the request changes nothing: give priority, time_limit or both")
    if priority is not None:
        if not isinstance(priority, int) or isinstance(priority, bool):
            raise Refused(f"priority: {priority!r} is not a whole number: give 0 to {PRIORITY_MAX}")
        check_range("priority", priority, 0, PRIORITY_MAX)
    if limit_s is not None:
        check_range("time_limit_s", limit_s, 0, YEAR_S)
        if job.batch is not None:
            text = (
                f"time_limit: job {job.job_id} is a batch of a short array, and its limit follows "
                f"from that of each element: change that of array {job.array}, which counts for "
                "the batches that begin later"
            )
            raise Problem(409, text)
        if job.state in job_life.ON_NODES:
            text = (
                f"time_limit: job {job.job_id} is {job.state}, and the limit of a job that has "
                "begun cannot be changed"
            )
            raise Problem(409, text)
    if priority in (None, job.spec.priority) and limit_s in (None, job.spec.time_limit_s):
        return None
    return JobUpdated(job_id=job.job_id, priority=priority, time_limit_s=limit_s, user=user)


def hold(job: Job, user: str) -> JobUpdated | None:
    """Return the fact for `POST .../hold`; None if the job is held already."""
    return None if job.order.held else JobUpdated(job_id=job.job_id, held=True, user=user)


def release(job: Job, user: str, principal: Principal) -> JobUpdated | None:
    """Return the fact for `POST .../release`; None if the job is not held.

    Raises Denied 403 if another user holds it and the principal is not an operator.
    """
    if job.order.held_by not in ("", job.user, principal.user) and principal.role not in (
        OPERATOR,
        ADMIN,
    ):
        raise Denied(
            403,
            f"job {job.job_id} is held by {job.order.held_by}: ask them or an operator to "
            "release it",
        )
    return JobUpdated(job_id=job.job_id, held=False, user=user) if job.order.held else None


def requeue(job: Job, user: str) -> RequeueRequested | None:
    """Return the fact for `POST .../requeue`; None if it was requested already.

    Raises Problem 409 for a job that has no attempt on a node.
    """
    if job.state not in job_life.ON_NODES:
        raise Problem(
            409,
            f"job {job.job_id} cannot be requeued: it is {job.state} and has no attempt on a node",
            state=job.state,
            id=job.job_id,
        )
    return (
        RequeueRequested(job_id=job.job_id, attempt=job.attempt, user=user)
        if job.order.requeue < job.attempt
        else None
    )


def check_changeable(job: Job) -> None:
    """Raise Problem 409 for a job that has ended, a replica, or an allocation."""
    if job.state in job_life.ENDED:
        raise Problem(
            409,
            f"job {job.job_id} cannot be changed: it has ended and is {job.state}",
            state=job.state,
            id=job.job_id,
        )
    if job.spec.allocation is not None:
        text = (
            f"job {job.job_id} is an allocation: extend it with `muster extend` or release it with "
            "`muster release`"
        )
        raise Problem(409, text)
    if job.spec.serve is not None:
        text = (
            f"job {job.job_id} is a replica: change its model {job.spec.serve.model} with `muster "
            "redeploy` or `muster scale`"
        )
        raise Problem(409, text)


def queue_setting(body: object, name: str, user: str, plugged: Iterable[str] = ()) -> QueueSet:
    """Return the fact for `PUT /v1/queues/{name}`. Raises Refused.

    `plugged` are the orders that plug-ins add to the built-in ones.
    """
    policies = (*POLICIES, *plugged)
    if not ID_PATTERN.fullmatch(name):
        raise Refused(
            f"queue: {name[:64]!r} is not valid: use small letters, digits and - (at most 63)"
        )
    if not isinstance(body, dict) or "policy" not in body:
        raise Refused(f"policy: missing: give one of {', '.join(policies)}")
    check_known(body, QUEUE_FIELDS, "field")
    queue = convert(dict(body), QueueBody)
    check_known([queue.policy], policies, "policy")
    check_range("weight", queue.weight, 1, WEIGHT_MAX)
    ageing_s = duration_s(queue.ageing, "ageing")
    check_range("ageing", ageing_s, 0, YEAR_S)
    slice_s = duration_s(queue.time_slice, "time_slice")
    check_range("time_slice", slice_s, 0, YEAR_S)
    if ageing_s and slice_s:
        raise Refused(
            "time_slice: ageing is given too, and jobs that take turns do not age, because the "
            "higher priority always goes first: give one of them"
        )
    return QueueSet(
        queue=name,
        policy=queue.policy,
        weight=queue.weight,
        ageing_s=ageing_s,
        user=user,
        backfill=queue.backfill,
        time_slice_s=slice_s,
    )
