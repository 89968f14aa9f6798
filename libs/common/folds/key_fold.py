"""Apply facts about tenants and their keys: one function per kind, named after the kind.

Pure and total, called by `fold.apply` only. A revoked key leaves the state at once, an expired one
after a while. A removed tenant has no keys, whatever the order of the gateways' facts. Tests:
tests/unit/test_expired_keys.py.
"""

from typing import Final

from libs.common import facts as f
from libs.common.change import IGNORED, Change, Stamp
from libs.common.folds import kept_fold, model_fold
from libs.common.state.cluster import Cluster, Key, is_tenant_removed, tenant_of
from libs.common.state.rate_limits import RateLimits

# An expired key stays for this long, so that people see why it is refused. Beyond the newest
# EXPIRED_MAX it stays for a day: the time is that of a gateway's clock, which may be ahead. Beyond
# the newest EXPIRED_KEPT it leaves at once. These are as many as the valid keys that a cluster may
# have, so that such a clock removes none of those.
EXPIRED_STAY_NS: Final = 30 * 86_400 * 1_000_000_000
EXPIRED_MAX: Final = 1_000
EXPIRED_STAY_MIN_NS: Final = 86_400 * 1_000_000_000
EXPIRED_KEPT: Final = 10_000
# Expired keys are looked for with the first new key of a minute, and when the number of keys is a
# multiple of SWEEP_KEYS, because that costs a walk over all keys.
SWEEP_NS: Final = 60 * 1_000_000_000
SWEEP_KEYS: Final = 1_000


def tenant_set(cluster: Cluster, fact: f.TenantSet, stamp: Stamp) -> Change:
    """Set the limits of a tenant, or remove it.

    A removal undeploys the models that another gateway deployed meanwhile, and drops what it kept.
    """
    tenant = tenant_of(cluster, fact.tenant)
    tenant.max_gpu_share, tenant.max_waiting, tenant.weight = (
        fact.max_gpu_share,
        fact.max_waiting,
        fact.weight,
    )
    tenant.gpu_hours, tenant.shares_devices, tenant.removed = (
        fact.gpu_hours,
        fact.shares_devices,
        fact.removed,
    )
    tenant.gpu_hours_per, tenant.max_pool_bytes = fact.gpu_hours_per, fact.max_pool_bytes
    tenant.max_models = fact.max_models
    tenant.requests_per_minute, tenant.tokens_per_minute = (
        fact.requests_per_minute,
        fact.tokens_per_minute,
    )
    if not fact.removed:
        return Change()
    cluster.keys = {
        key_id: key for key_id, key in cluster.keys.items() if key.tenant != fact.tenant
    }
    cluster.keys_seq = stamp.seq
    dropped = kept_fold.tenant_removed(cluster, fact.tenant)
    undeployed = model_fold.tenant_removed(cluster, fact.tenant, stamp)
    return Change((), dropped.nodes, tuple(dict.fromkeys((*dropped.models, *undeployed))))


def created(cluster: Cluster, fact: f.KeyCreated, stamp: Stamp) -> Change:
    """Add a key, and remove keys that expired long before the time of this commit."""
    if fact.key_id in cluster.keys or is_tenant_removed(cluster, fact.tenant):
        return IGNORED
    _remove_expired(cluster, stamp.at_ns)
    cluster.keys[fact.key_id] = Key(
        key_id=fact.key_id,
        tenant=fact.tenant,
        user=fact.user,
        role=fact.role,
        name=fact.name,
        secret_hash=fact.secret_hash,
        created_ns=stamp.at_ns,
        expires_ns=fact.expires_ns,
        by=fact.by,
        request=fact.request,
        limits=RateLimits(fact.requests_per_minute, fact.tokens_per_minute),
    )
    cluster.keys_seq = stamp.seq
    return Change()


def _remove_expired(cluster: Cluster, now_ns: int) -> None:
    if not _sweep_is_due(cluster, now_ns):
        return
    expired = sorted(
        (key.expires_ns, key.key_id)
        for key in cluster.keys.values()
        if 0 < key.expires_ns <= now_ns
    )
    for number, (expires_ns, key_id) in enumerate(expired):
        if expires_ns + _stay_ns(len(expired) - number) <= now_ns:
            del cluster.keys[key_id]


def _sweep_is_due(cluster: Cluster, now_ns: int) -> bool:
    """Compare with the time of the newest key, because all folds must decide alike."""
    newest = next(reversed(cluster.keys.values()), None)
    return newest is not None and (
        len(cluster.keys) % SWEEP_KEYS == 0 or newest.created_ns // SWEEP_NS != now_ns // SWEEP_NS
    )


def _stay_ns(rank: int) -> int:
    """Return how long the expired key stays that expired as the `rank`-th last one."""
    if rank > EXPIRED_KEPT:
        return 0
    return EXPIRED_STAY_MIN_NS if rank > EXPIRED_MAX else EXPIRED_STAY_NS


def rotated(cluster: Cluster, fact: f.KeyRotated, stamp: Stamp) -> Change:
    key = cluster.keys.get(fact.key_id)
    if key is None:
        return IGNORED
    key.old_hash, key.old_until_ns = key.secret_hash, fact.old_until_ns
    key.secret_hash, key.rotated_ns = fact.secret_hash, stamp.at_ns
    cluster.keys_seq = stamp.seq
    return Change()


def limits_set(cluster: Cluster, fact: f.KeyLimitsSet, stamp: Stamp) -> Change:
    key = cluster.keys.get(fact.key_id)
    if key is None:
        return IGNORED
    key.limits = RateLimits(fact.requests_per_minute, fact.tokens_per_minute)
    return Change()


def revoked(cluster: Cluster, fact: f.KeyRevoked, stamp: Stamp) -> Change:
    if cluster.keys.pop(fact.key_id, None) is None:
        return IGNORED
    cluster.keys_seq = stamp.seq
    return Change()


def access_recorded(cluster: Cluster, fact: f.AccessRecorded, stamp: Stamp) -> Change:
    """Change nothing: the archive keeps the records."""
    return Change()
