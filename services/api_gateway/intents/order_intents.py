"""What a request about the order of the queue means: the words of a submission about when, changes
of a job that waits, and queues.

Pure, like `intents.py`, of which it is a part. Which jobs and queues there are is asked of the fold
of this gateway. Held by tests/unit/test_gateway_order_intents.py.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from libs.common import arrays
from libs.common.errors import Refused
from libs.common.facts import JobUpdated, QueueSet, RequeueRequested
from libs.common.life import job_life
from libs.common.model import ID_PATTERN, PRIORITY_MAX, JobSpec, TenantId
from libs.common.state.cluster import Cluster, Job
from libs.common.state.ordering import (
    AFTER,
    AFTER_MAX,
    AFTER_OF_TENANT_MAX,
    DEFAULT_QUEUE,
    POLICIES,
)
from services.api_gateway.access.roles import ADMIN, OPERATOR, Principal
from services.api_gateway.intents.fields import check_known, check_range, convert
from services.api_gateway.problems import Denied, Problem
from services.api_gateway.times import duration_s, instant_ns

YEAR_S: Final = 366 * 86_400
# People's words, and the fields that they are read into.
ALIASES: Final = ("deadline", "estimate")
RANGES: Final = (("deadline_ns", 0, 1 << 62), ("estimate_s", 0, YEAR_S))
WEIGHT_MAX: Final = 1_000_000
QUEUE_RANGES: Final = (("weight", 1, WEIGHT_MAX),)
UPDATE_FIELDS: Final = ("priority", "time_limit", "time_limit_s", "user")


class QueueWish(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `PUT /v1/queues/{name}`.

    `ageing` is a duration of waiting that makes up for one step of priority; 0: none. `backfill`:
    whether those that do not delay it may pass the first job; null: in every queue but one of
    policy fifo. `time_slice` is a duration of running after which those that take turns make room
    for each other; 0: they do not.
    """

    policy: str
    weight: int = 100
    ageing: int | str = 0
    backfill: bool | None = None
    time_slice: int | str = 0


QUEUE_FIELDS: Final = QueueWish.__struct_fields__


def take_aliases(values: dict[str, Any]) -> None:
    """Read people's forms into the fields of JobSpec, in place. Raises Refused."""
    if "deadline" in values:
        values["deadline_ns"] = _taken(
            values, "deadline", "deadline_ns", lambda text: instant_ns(str(text), "deadline", 0)
        )
    for name in ("estimate", "estimate_s"):
        if name in values:
            values["estimate_s"] = _taken(
                values, name, "estimate_s", lambda text: duration_s(text, "estimate")
            )
    if "after" in values:
        values["after"] = dependencies(values["after"])
    if values.get("array") is not None:
        values["array"] = elements(values["array"])


def _taken(values: dict[str, Any], alias: str, name: str, read: Callable[[object], int]) -> int:
    given = values.pop(alias)
    if alias != name and name in values:
        raise Refused(f"{alias}: {name} is given too: give one of them")
    return read(given)


def dependencies(given: object) -> list[list[str]]:
    """[kind, job] pairs of such pairs, of "afterok:a:b", or of "afterok:a,afterany:b".

    Raises Refused.
    """
    texts = given.split(",") if isinstance(given, str) else given
    if not isinstance(texts, list):
        raise Refused('after: write "afterok:JOB", or a list of such')
    found = [[kind, job] for each in texts for kind, job in _pairs(each)]
    if len(found) > AFTER_MAX:
        raise Refused(f"after: {len(found)} jobs are too many: give at most {AFTER_MAX}")
    return found


def elements(given: object) -> dict[str, object]:
    """The fields of Array of "0-99%4". Raises Refused."""
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
            f"after: {given!r} is no dependency: write "
            f"{' or '.join(f'{kind}:JOB' for kind in AFTER)}"
        )
    return [(words[0], job) for job in words[1:]]


def check_order(cluster: Cluster, spec: JobSpec, job_named: Callable[[str], Job]) -> JobSpec:
    """The spec with ids for names of jobs that it waits for.

    Raises Refused for a queue that is not there, Problem for such a job.
    """
    if spec.queue not in ("", DEFAULT_QUEUE):
        check_known([spec.queue], cluster.queues, "queue")
    if spec.singleton and not spec.name:
        raise Refused(
            "singleton: it needs a name: no other job of that name and user runs meanwhile"
        )
    if spec.array is not None and spec.stdin:
        raise Refused("stdin: an array has many elements and no input: leave it out")
    return (
        replace(spec, after=tuple((kind, job_named(ref).job_id) for kind, ref in spec.after))
        if spec.after
        else spec
    )


def check_dependencies(cluster: Cluster, spec: JobSpec, tenant: TenantId) -> None:
    """Raises Problem 429 when the tenant's jobs wait for so many others already."""
    found = cluster.tenants.get(tenant)
    has, more = found.dependencies if found is not None else 0, len(spec.after)
    if more and has + more > AFTER_OF_TENANT_MAX:
        text = (
            f"after: the jobs of tenant {tenant} have {has} dependencies, and may have "
            f"{AFTER_OF_TENANT_MAX}"
        )
        raise Problem(
            429,
            (
                f"{text}: {more} more are too many: wait for some of these jobs to begin, or "
                "cancel some"
            ),
        )


def update(values: dict[str, Any], job: Job, user: str) -> JobUpdated | None:
    """The fact for `PATCH /v1/jobs/{ref}`; None when it is so already. Raises Refused."""
    limits = [
        duration_s(values[name], name) for name in ("time_limit", "time_limit_s") if name in values
    ]
    priority, limit_s = values.get("priority"), next(iter(limits), None)
    if priority is None and limit_s is None:
        raise Refused("give priority, time_limit or both")
    if priority is not None:
        if not isinstance(priority, int) or isinstance(priority, bool):
            raise Refused(f"priority: {priority!r} is no whole number")
        check_range("priority", priority, 0, PRIORITY_MAX)
    if limit_s is not None:
        check_range("time_limit_s", limit_s, 0, YEAR_S)
        if job.state in job_life.ON_NODES:
            raise Problem(
                409,
                (
                    f"job {job.job_id} is {job.state}: the time limit that it began with holds "
                    "until it ends"
                ),
            )
    if priority in (None, job.spec.priority) and limit_s in (None, job.spec.time_limit_s):
        return None
    return JobUpdated(job_id=job.job_id, priority=priority, time_limit_s=limit_s, user=user)


def hold(job: Job, user: str) -> JobUpdated | None:
    """The fact for `POST .../hold`; None when it is held already."""
    return None if job.order.held else JobUpdated(job_id=job.job_id, held=True, user=user)


def release(job: Job, user: str, principal: Principal) -> JobUpdated | None:
    """The fact for `POST .../release`; None when nobody holds it.

    Raises Denied 403 for what an operator holds.
    """
    if job.order.held_by not in ("", job.user, principal.user) and principal.role not in (
        OPERATOR,
        ADMIN,
    ):
        raise Denied(
            403, f"job {job.job_id} is held by {job.order.held_by}: ask them or an operator"
        )
    return JobUpdated(job_id=job.job_id, held=False, user=user) if job.order.held else None


def requeue(job: Job, user: str) -> RequeueRequested | None:
    """The fact for `POST .../requeue`; None when it was asked for already.

    Raises Problem 409 for a job that waits.
    """
    if job.state not in job_life.ON_NODES:
        raise Problem(
            409,
            f"job {job.job_id} is {job.state}: there is no attempt of it to end",
            state=job.state,
            id=job.job_id,
        )
    return (
        RequeueRequested(job_id=job.job_id, attempt=job.attempt, user=user)
        if job.order.requeue < job.attempt
        else None
    )


def check_changeable(job: Job) -> None:
    """Raises Problem 409 for a job that has ended, that is a model's to change, or that is an
    allocation.
    """
    if job.state in job_life.ENDED:
        raise Problem(
            409,
            f"job {job.job_id} has ended already: it is {job.state}",
            state=job.state,
            id=job.job_id,
        )
    if job.spec.allocation is not None:
        raise Problem(
            409,
            (
                f"job {job.job_id} is an allocation: let it last longer or give it back (muster "
                "extend, muster release)"
            ),
        )
    if job.spec.serve is not None:
        raise Problem(
            409,
            (
                f"job {job.job_id} is a replica: change its model {job.spec.serve.model} (muster "
                "redeploy, muster scale)"
            ),
        )


def queue_setting(body: object, name: str, user: str, plugged: Iterable[str] = ()) -> QueueSet:
    """The fact for `PUT /v1/queues/{name}`; `plugged` are the orders that the scheduler has beside
    the built-in ones.

    Raises Refused.
    """
    policies = (*POLICIES, *plugged)
    if not ID_PATTERN.fullmatch(name):
        raise Refused(
            f"queue: {name[:64]!r} is not valid: use small letters, digits and - (at most 63)"
        )
    if not isinstance(body, dict) or "policy" not in body:
        raise Refused(f"policy: missing: give one of {', '.join(policies)}")
    check_known(body, QUEUE_FIELDS, "field")
    wish = convert(dict(body), QueueWish)
    check_known([wish.policy], policies, "policy")
    check_range("weight", wish.weight, 1, WEIGHT_MAX)
    ageing_s = duration_s(wish.ageing, "ageing")
    check_range("ageing", ageing_s, 0, YEAR_S)
    slice_s = duration_s(wish.time_slice, "time_slice")
    check_range("time_slice", slice_s, 0, YEAR_S)
    if ageing_s and slice_s:
        raise Refused(
            "time_slice: where jobs take turns, the higher priority always goes first: leave "
            "out ageing, or time_slice"
        )
    return QueueSet(
        queue=name,
        policy=wish.policy,
        weight=wish.weight,
        ageing_s=ageing_s,
        user=user,
        backfill=wish.backfill,
        time_slice_s=slice_s,
    )
