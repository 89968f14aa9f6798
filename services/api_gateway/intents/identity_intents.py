"""What a request about tenants or keys means: checks it and gives the fact to record, or says what
is wrong with it.

Pure, like `intents.py`. Whether a tenant is there and empty is asked of the fold of this gateway;
what another says at the same time is settled by the fold (`key_fold.py`). Held by
tests/integration/test_gateway_identity.py.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from libs.common.errors import Refused
from libs.common.facts import KeyCreated, KeyRotated, TenantSet
from libs.common.model import (
    GPUS_PER_NODE_MAX,
    ID_PATTERN,
    NODES_MAX,
    PER_LIFE,
    PER_MONTH,
    WHOLE_GPU,
    TenantId,
)
from libs.common.state.cluster import Cluster, Key, Tenant, live_jobs
from services.api_gateway.access.roles import MEMBER, ROLES
from services.api_gateway.intents import job_intents as intents
from services.api_gateway.intents.fields import check_one_of, check_range, convert
from services.api_gateway.problems import Problem
from services.api_gateway.times import duration_s

DEFAULT: Final = TenantId("default")
NS: Final = 1_000_000_000
# Of keys together, so that an index over them stays small.
KEYS_MAX: Final = 10_000
NAME_MAX: Final = 128
COUNT_MAX: Final = 1_000_000_000
GRACE_S: Final = 86_400
GRACE_MAX_S: Final = 90 * 86_400
EXPIRES_MAX_S: Final = 10 * 366 * 86_400
_PRINTABLE: Final = re.compile(r"[^\x00-\x1f\x7f]*")


class TenantWish(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `PUT /v1/tenants/{name}`: what is not named is not limited.

    `max_gpus` in devices, 0.5 is half of one.
    """

    max_gpus: float = 0
    max_waiting: int = 0
    weight: int = 100
    gpu_hours: int = 0
    gpu_hours_per: str = PER_LIFE
    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    shares_devices: bool = False


class KeyWish(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/keys`. `expires_in` is a duration; without it the key never expires."""

    user: str
    tenant: str = ""
    role: str = MEMBER
    name: str = ""
    expires_in: int | str = 0


PERIODS: Final = (PER_LIFE, PER_MONTH)
TENANT_FIELDS: Final = TenantWish.__struct_fields__
KEY_FIELDS: Final = KeyWish.__struct_fields__
ROTATE_FIELDS: Final = ("grace",)
RANGES: Final = (
    ("max_waiting", 0, COUNT_MAX),
    ("weight", 1, 1_000_000),
    ("gpu_hours", 0, COUNT_MAX),
    ("requests_per_minute", 0, COUNT_MAX),
    ("tokens_per_minute", 0, COUNT_MAX),
)


def tenant_setting(body: object, name: str, user: str) -> TenantSet:
    """The fact for `PUT /v1/tenants/{name}`. Raises Refused."""
    if not ID_PATTERN.fullmatch(name):
        raise Refused(
            f"tenant: {name[:64]!r} is not valid: use small letters, digits and - (at most 63)"
        )
    wish = convert(intents.fields_of({} if body is None else body, TENANT_FIELDS), TenantWish)
    for field, low, high in RANGES:
        check_range(field, getattr(wish, field), low, high)
    check_one_of("gpu_hours_per", wish.gpu_hours_per, PERIODS)
    share = (
        round(wish.max_gpus * WHOLE_GPU)
        if 0 <= wish.max_gpus <= NODES_MAX * GPUS_PER_NODE_MAX
        else -1
    )
    if share < 0 or abs(share - wish.max_gpus * WHOLE_GPU) > 1e-6:
        raise Refused(
            f"max_gpus: {wish.max_gpus} is no number of GPUs: give 0 (no limit) or more, in "
            "steps of 0.01"
        )
    return TenantSet(
        tenant=TenantId(name),
        max_gpu_share=share,
        max_waiting=wish.max_waiting,
        weight=wish.weight,
        gpu_hours=wish.gpu_hours,
        gpu_hours_per=wish.gpu_hours_per,
        requests_per_minute=wish.requests_per_minute,
        tokens_per_minute=wish.tokens_per_minute,
        shares_devices=wish.shares_devices,
        user=user,
    )


def tenant_removal(cluster: Cluster, tenant: Tenant, user: str) -> TenantSet:
    """The fact for `DELETE /v1/tenants/{name}`. Raises Problem 409 naming what it still has."""
    if tenant.tenant == DEFAULT:
        raise Problem(409, "the tenant default stays: the host's own keys are of it")
    left = [f"{number} {what}" for number, what in _left(cluster, tenant.tenant) if number]
    if left:
        raise Problem(
            409, f"tenant {tenant.tenant} still has {', '.join(left)}: end and revoke them first"
        )
    return TenantSet(tenant=tenant.tenant, removed=True, user=user)


def _left(cluster: Cluster, tenant: TenantId) -> Iterator[tuple[int, str]]:
    yield sum(job.tenant == tenant for job in live_jobs(cluster)), "jobs that have not ended"
    yield (
        sum(model.deployed and model.tenant == tenant for model in cluster.models.values()),
        "deployed models",
    )
    yield sum(key.tenant == tenant for key in cluster.keys.values()), "keys"


def known_tenant(cluster: Cluster, name: str) -> Tenant | None:
    """The tenant unless it was removed; `default` is always there."""
    found = cluster.tenants.get(TenantId(name))
    if found is None and name == DEFAULT:
        return Tenant(DEFAULT)
    return None if found is None or found.removed else found


def key_creation(body: object, cluster: Cluster, own_tenant: str, now_ns: int) -> KeyCreated:
    """The fact for `POST /v1/keys`, but for the key's id and hash. Raises Refused."""
    values = intents.fields_of({} if body is None else body, KEY_FIELDS)
    if "user" not in values:
        raise Refused("user: missing: name who acts with this key, a person or a service")
    wish = convert(values, KeyWish)
    tenant, user = wish.tenant or own_tenant, intents.user_of({"user": wish.user})
    if known_tenant(cluster, tenant) is None:
        raise Refused(f"tenant: {tenant[:64]!r} is not known: PUT /v1/tenants/NAME makes it")
    if not user or wish.role not in ROLES:
        raise Refused(
            f"role: {wish.role[:32]!r} is not known: give one of {', '.join(ROLES)}"
            if user
            else "user: give a name"
        )
    if len(wish.name) > NAME_MAX or not _PRINTABLE.fullmatch(wish.name):
        raise Refused(f"name: give at most {NAME_MAX} printable characters")
    if len(cluster.keys) >= KEYS_MAX:
        raise Refused(f"there are {KEYS_MAX} keys: revoke some first")
    expires_s = duration_s(wish.expires_in, "expires_in")
    check_range("expires_in", expires_s, 1 if "expires_in" in values else 0, EXPIRES_MAX_S)
    expires_ns = now_ns + expires_s * NS if expires_s else 0
    blank = ""  # both are filled in by the route, which makes the secret
    return KeyCreated(
        blank,
        blank,
        TenantId(tenant),
        user=user,
        role=wish.role,
        name=wish.name,
        expires_ns=expires_ns,
    )


def key_rotation(body: object, key: Key, digest: str, user: str, now_ns: int) -> KeyRotated:
    """The fact for `POST .../rotate`. Raises Refused."""
    values: dict[str, Any] = intents.fields_of({} if body is None else body, ROTATE_FIELDS)
    grace_s = duration_s(values.get("grace", GRACE_S), "grace")
    check_range("grace", grace_s, 0, GRACE_MAX_S)
    return KeyRotated(
        key_id=key.key_id,
        secret_hash=digest,
        old_until_ns=now_ns + grace_s * NS if grace_s else 0,
        user=user,
    )
