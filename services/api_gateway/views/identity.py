"""Tenants, keys and access records as the API shows them.

Pure. No view contains the hash of a key.
"""

import msgspec

from libs.common.messages.access_entry import AccessEntry
from libs.common.model import WHOLE_GPU
from libs.common.state.cluster import Cluster, Key, Tenant
from services.api_gateway.times import rfc3339

_SHARE_MS_PER_HOUR = WHOLE_GPU * 3_600_000


class TenantShown(msgspec.Struct):
    """A tenant's limits and its present use; GPUs are counted in devices.

    0 means no limit, except for `max_waiting` (200,000) and `max_models` (200).
    `gpu_hours_used` counts against `gpu_hours`: since the tenant exists, or in this month, as
    `gpu_hours_per` says. `idle_action` is what happens to its jobs whose GPUs are all idle: the
    user is warned after `idle_s`, and a job is ended `idle_grace_s` later.
    """

    name: str
    max_gpus: float
    max_waiting: int
    weight: int
    gpu_hours: int
    gpu_hours_per: str
    requests_per_minute: int
    tokens_per_minute: int
    shares_devices: bool
    max_pool_bytes: int
    gpus_held: float
    pool_bytes_held: int
    jobs_waiting: int
    gpu_hours_used: float
    keys: int
    max_models: int
    idle_action: str = "off"
    idle_s: int = 0
    idle_grace_s: int = 0


class KeyShown(msgspec.Struct, omit_defaults=True):
    """An API key.

    `key` is the key itself; only the answer that creates or rotates it contains it. Until
    `old_until`, the secret from before the last rotation works too. The limits are those of
    requests to models (0: none).
    """

    id: str
    tenant: str
    user: str
    role: str
    name: str
    created_at: str | None
    created_by: str
    expires_at: str | None
    expired: bool
    rotated_at: str | None
    old_until: str | None
    requests_per_minute: int
    tokens_per_minute: int
    key: str = ""


class AccessShown(msgspec.Struct):
    """An access record.

    `denied` is the reason of a denial, and empty for an allowed request. `status` is 0 if the
    client disconnected before the answer began.
    """

    seq: int
    at: str | None
    gateway: str
    request_id: str
    key_id: str
    tenant: str
    user: str
    method: str
    route: str
    ids: tuple[str, ...]
    status: int
    denied: str
    source: str
    detail: str
    model: str = ""


def tenant_shown(cluster: Cluster, tenant: Tenant) -> TenantShown:
    return TenantShown(
        name=tenant.tenant,
        max_gpus=tenant.max_gpu_share / WHOLE_GPU,
        max_waiting=tenant.max_waiting,
        weight=tenant.weight,
        gpu_hours=tenant.gpu_hours,
        gpu_hours_per=tenant.gpu_hours_per,
        requests_per_minute=tenant.requests_per_minute,
        tokens_per_minute=tenant.tokens_per_minute,
        shares_devices=tenant.shares_devices,
        max_pool_bytes=tenant.max_pool_bytes,
        max_models=tenant.max_models,
        pool_bytes_held=tenant.use.held_pool_bytes,
        gpus_held=tenant.held_share / WHOLE_GPU,
        jobs_waiting=tenant.waiting,
        gpu_hours_used=round(tenant.budget_share_ms / _SHARE_MS_PER_HOUR, 3),
        keys=sum(key.tenant == tenant.tenant for key in cluster.keys.values()),
        idle_action=tenant.idle_action,
        idle_s=tenant.idle_s,
        idle_grace_s=tenant.idle_grace_s,
    )


def key_shown(key: Key, now_ns: int, text: str = "") -> KeyShown:
    return KeyShown(
        id=key.key_id,
        tenant=key.tenant,
        user=key.user,
        role=key.role,
        name=key.name,
        created_at=rfc3339(key.created_ns),
        created_by=key.by,
        expires_at=rfc3339(key.expires_ns),
        expired=0 < key.expires_ns <= now_ns,
        rotated_at=rfc3339(key.rotated_ns),
        old_until=rfc3339(key.old_until_ns),
        requests_per_minute=key.limits.requests_per_minute,
        tokens_per_minute=key.limits.tokens_per_minute,
        key=text,
    )


def access_shown(seq: int, gateway: str, entry: AccessEntry) -> AccessShown:
    values = msgspec.structs.asdict(entry)
    return AccessShown(seq=seq, at=rfc3339(values.pop("at_ns")), gateway=gateway, **values)
