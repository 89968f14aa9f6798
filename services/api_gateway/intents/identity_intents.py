"""Requests about tenants and API keys.

Pure. Whether a tenant exists and is empty is answered from the fold of this gateway. If another
gateway records a conflicting fact at the same time, the fold decides (`key_fold.py`). Tests:
tests/integration/test_gateway_identity.py.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from libs.common.errors import Refused
from libs.common.facts import KeyCreated, KeyLimitsSet, KeyRotated, TenantSet
from libs.common.model import (
    GPUS_PER_NODE_MAX,
    ID_PATTERN,
    NODES_MAX,
    PER_LIFE,
    PER_MONTH,
    WHOLE_GPU,
    TenantId,
)
from libs.common.state.cluster import Cluster, Key, Tenant, is_tenant_removed, live_jobs
from services.api_gateway.access.roles import MEMBER, ROLES
from services.api_gateway.intents import job_intents, placement_fields
from services.api_gateway.intents.fields import check_one_of, check_range, convert
from services.api_gateway.problems import Problem
from services.api_gateway.times import duration_s

DEFAULT: Final = TenantId("default")
NS: Final = 1_000_000_000
# All keys of the cluster that have not expired, so that the index over them stays small. The fold
# bounds the expired ones (`key_fold.EXPIRED_KEPT`).
KEYS_MAX: Final = 10_000
NAME_MAX: Final = 128
COUNT_MAX: Final = 1_000_000_000
POOL_BYTES_MAX: Final = 1 << 60
GRACE_S: Final = 86_400
GRACE_MAX_S: Final = 90 * 86_400
EXPIRES_MAX_S: Final = 10 * 366 * 86_400
_PRINTABLE: Final = re.compile(r"[^\x00-\x1f\x7f]*")


class TenantBody(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a tenant.

    0 or left out means no limit, except for `max_waiting` (200,000) and `max_models` (200).
    `max_gpus`: devices that its jobs may hold at one time, for example 0.5. `gpu_hours`: its budget
    for its whole life, or for each month of UTC, as `gpu_hours_per` says. `shares_devices`: its
    jobs may share a device with the jobs of other tenants. `max_pool_bytes`: the memory pools of
    its jobs at one time, as bytes or for example "40GiB". `max_models`: its deployed models.
    """

    max_gpus: float = 0
    max_waiting: int = 0
    weight: int = 100
    gpu_hours: int = 0
    gpu_hours_per: str = PER_LIFE
    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    shares_devices: bool = False
    max_pool_bytes: int | str = 0
    max_models: int = 0


class KeyBody(msgspec.Struct, frozen=True, kw_only=True):
    """A key to create.

    `expires_in` is a duration; without it the key never expires. The limits are those of requests
    to models with this key; a limit that is 0 or left out does not apply.
    """

    user: str
    tenant: str = ""
    role: str = MEMBER
    name: str = ""
    expires_in: int | str = 0
    requests_per_minute: int = 0
    tokens_per_minute: int = 0


class LimitsBody(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of requests to models; one that is 0 or left out does not apply."""

    requests_per_minute: int = 0
    tokens_per_minute: int = 0


PERIODS: Final = (PER_LIFE, PER_MONTH)
TENANT_FIELDS: Final = TenantBody.__struct_fields__
KEY_FIELDS: Final = KeyBody.__struct_fields__
ROTATE_FIELDS: Final = ("grace",)
LIMIT_FIELDS: Final = LimitsBody.__struct_fields__
LIMIT_RANGES: Final = (
    ("requests_per_minute", 0, COUNT_MAX),
    ("tokens_per_minute", 0, COUNT_MAX),
)
RANGES: Final = (
    ("max_waiting", 0, COUNT_MAX),
    ("max_models", 0, COUNT_MAX),
    ("weight", 1, 1_000_000),
    ("gpu_hours", 0, COUNT_MAX),
    *LIMIT_RANGES,
)


def tenant_setting(body: object, name: str, user: str) -> TenantSet:
    """Return the fact for `PUT /v1/tenants/{name}`. Raises Refused."""
    if not ID_PATTERN.fullmatch(name):
        raise Refused(
            f"tenant: {name[:64]!r} is not valid: use small letters, digits and - (at most 63)"
        )
    tenant = convert(
        job_intents.body_fields({} if body is None else body, TENANT_FIELDS), TenantBody
    )
    for field, low, high in RANGES:
        check_range(field, getattr(tenant, field), low, high)
    check_one_of("gpu_hours_per", tenant.gpu_hours_per, PERIODS)
    share = (
        round(tenant.max_gpus * WHOLE_GPU)
        if 0 <= tenant.max_gpus <= NODES_MAX * GPUS_PER_NODE_MAX
        else -1
    )
    if share < 0 or abs(share - tenant.max_gpus * WHOLE_GPU) > 1e-6:
        raise Refused(
            f"max_gpus: {tenant.max_gpus} is not valid: give 0 (no limit) to "
            f"{NODES_MAX * GPUS_PER_NODE_MAX}, in steps of 0.01"
        )
    pool_bytes = placement_fields.size_bytes(tenant.max_pool_bytes, "max_pool_bytes")
    check_range("max_pool_bytes", pool_bytes, 0, POOL_BYTES_MAX)
    return TenantSet(
        tenant=TenantId(name),
        max_pool_bytes=pool_bytes,
        max_models=tenant.max_models,
        max_gpu_share=share,
        max_waiting=tenant.max_waiting,
        weight=tenant.weight,
        gpu_hours=tenant.gpu_hours,
        gpu_hours_per=tenant.gpu_hours_per,
        requests_per_minute=tenant.requests_per_minute,
        tokens_per_minute=tenant.tokens_per_minute,
        shares_devices=tenant.shares_devices,
        user=user,
    )


def check_not_removed(cluster: Cluster, name: str) -> None:
    """Raise Problem 409 if a tenant of this name was removed.

    A tenant that is created again would read the jobs, output and uploads of the removed one.
    """
    if is_tenant_removed(cluster, TenantId(name)):
        text = (
            f"tenant {name} cannot be created: a tenant of this name was removed, and its jobs, "
            "uploads and usage are kept: choose another name"
        )
        raise Problem(409, text)


def tenant_removal(cluster: Cluster, tenant: Tenant, user: str) -> TenantSet:
    """Return the fact for `DELETE /v1/tenants/{name}`.

    Raises Problem 409 with what the tenant still has.
    """
    if tenant.tenant == DEFAULT:
        text = "the tenant default cannot be removed: the keys of the host's key file belong to it"
        raise Problem(409, text)
    left = [f"{number} {what}" for number, what in _remaining(cluster, tenant.tenant) if number]
    if left:
        text = (
            f"tenant {tenant.tenant} cannot be removed: it still has {', '.join(left)}: end its "
            "jobs, undeploy its models, drop their resident data (`muster model drop`), release "
            "its locks, remove its secrets and notifications, and then revoke its keys"
        )
        raise Problem(409, text)
    return TenantSet(tenant=tenant.tenant, removed=True, user=user)


def _remaining(cluster: Cluster, tenant: TenantId) -> Iterator[tuple[int, str]]:
    yield sum(job.tenant == tenant for job in live_jobs(cluster)), "jobs that have not ended"
    yield (
        sum(model.deployed and model.tenant == tenant for model in cluster.models.values()),
        "deployed models",
    )
    kept = {each.model for each in cluster.kept.values() if each.tenant == tenant}
    yield len(kept), "models with resident data"
    yield sum(key.tenant == tenant for key in cluster.keys.values()), "keys"
    # A tenant that is created later under this name would inherit these.
    yield sum(each.tenant == tenant for each in cluster.secrets.values()), "secrets"
    yield sum(each.tenant == tenant for each in cluster.notifications.values()), "notifications"
    locks = cluster.locks.get(tenant)
    yield locks.claims if locks is not None else 0, "claims on locks"


def known_tenant(cluster: Cluster, name: str) -> Tenant | None:
    """Return the tenant; None if it does not exist or was removed. `default` always exists."""
    tenant = cluster.tenants.get(TenantId(name))
    if tenant is None and name == DEFAULT:
        return Tenant(DEFAULT)
    return None if tenant is None or tenant.removed else tenant


def key_creation(body: object, cluster: Cluster, own_tenant: str, now_ns: int) -> KeyCreated:
    """Return the fact for `POST /v1/keys`, still without the key's id and hash. Raises Refused."""
    values = job_intents.body_fields({} if body is None else body, KEY_FIELDS)
    if "user" not in values:
        raise Refused("user: missing: give the name of the person or service that uses the key")
    key = convert(values, KeyBody)
    tenant, user = key.tenant or own_tenant, job_intents.take_user({"user": key.user})
    if known_tenant(cluster, tenant) is None:
        raise Refused(
            f"tenant: {tenant[:64]!r} does not exist: "
            "create it with `muster tenant set` (PUT /v1/tenants/NAME)"
        )
    if not user:
        raise Refused("user: empty: give the name of the person or service that uses the key")
    check_one_of("role", key.role, ROLES)
    if len(key.name) > NAME_MAX or not _PRINTABLE.fullmatch(key.name):
        raise Refused(
            f"name: {key.name[:64]!r} is not valid: give at most {NAME_MAX} printable characters"
        )
    if len(cluster.keys) >= KEYS_MAX and _valid_keys(cluster, now_ns) >= KEYS_MAX:
        raise Refused(
            f"the key was not created: the cluster has {KEYS_MAX} keys that have not expired, the "
            "maximum: revoke some (muster key revoke)"
        )
    expires_s = duration_s(key.expires_in, "expires_in")
    check_range("expires_in", expires_s, 1 if "expires_in" in values else 0, EXPIRES_MAX_S)
    expires_ns = now_ns + expires_s * NS if expires_s else 0
    check_limits(key)
    return KeyCreated(
        key_id="",  # the route creates the secret and fills in the id and the hash
        secret_hash="",  # nosec B106
        tenant=TenantId(tenant),
        user=user,
        role=key.role,
        name=key.name,
        expires_ns=expires_ns,
        requests_per_minute=key.requests_per_minute,
        tokens_per_minute=key.tokens_per_minute,
    )


def _valid_keys(cluster: Cluster, now_ns: int) -> int:
    return sum(not 0 < key.expires_ns <= now_ns for key in cluster.keys.values())


def check_limits(limits: KeyBody | LimitsBody) -> None:
    """Raise Refused unless the limits per minute are within their bounds."""
    for field, low, high in LIMIT_RANGES:
        check_range(field, getattr(limits, field), low, high)


def key_limits(body: object, key: Key, user: str) -> KeyLimitsSet:
    """Return the fact for `PUT .../limits` of a key. Raises Refused."""
    found = convert(job_intents.body_fields({} if body is None else body, LIMIT_FIELDS), LimitsBody)
    check_limits(found)
    return KeyLimitsSet(
        key_id=key.key_id,
        requests_per_minute=found.requests_per_minute,
        tokens_per_minute=found.tokens_per_minute,
        user=user,
    )


def key_rotation(body: object, key: Key, digest: str, user: str, now_ns: int) -> KeyRotated:
    """Return the fact for `POST .../rotate`. Raises Refused."""
    values: dict[str, Any] = job_intents.body_fields({} if body is None else body, ROTATE_FIELDS)
    grace_s = duration_s(values.get("grace", GRACE_S), "grace")
    check_range("grace", grace_s, 0, GRACE_MAX_S)
    return KeyRotated(
        key_id=key.key_id,
        secret_hash=digest,
        old_until_ns=now_ns + grace_s * NS if grace_s else 0,
        user=user,
    )
