"""The limits of an account of requests and tokens per minute, as the cluster's state has them.

Pure. Gateways ask which accounts a request counts in, quota asks for the limits of one. Tests:
tests/unit/test_rate_accounts.py.
"""

from libs.common.model import TenantId
from libs.common.state.cluster import Cluster
from libs.common.state.rate_limits import (
    KEY,
    MODEL,
    NO_LIMITS,
    OF_TENANT,
    RateLimits,
    at_model,
    key_account,
    model_account,
)


def limits_of(cluster: Cluster, tenant: TenantId, account: str) -> RateLimits:
    """Return the limits of one account; none for a key, a model or a tenant that is not known."""
    if account == OF_TENANT:
        return of_tenant(cluster, tenant)
    kind, _, name = account.partition(":")
    if kind == KEY:
        return of_key(cluster, name)
    return of_model(cluster, name, tenant) if kind == MODEL else NO_LIMITS


def of_tenant(cluster: Cluster, tenant: TenantId) -> RateLimits:
    found = cluster.tenants.get(tenant)
    if found is None:
        return NO_LIMITS
    return RateLimits(found.requests_per_minute, found.tokens_per_minute)


def of_key(cluster: Cluster, key_id: str) -> RateLimits:
    found = cluster.keys.get(key_id)
    return found.limits if found is not None else NO_LIMITS


def of_model(cluster: Cluster, name: str, tenant: TenantId) -> RateLimits:
    found = cluster.models.get(name)
    if found is None or not found.limits:
        return NO_LIMITS
    return at_model(found.limits, found.tenant, tenant)


def of_request(
    cluster: Cluster, tenant: TenantId, key_id: str, model: str
) -> list[tuple[str, RateLimits]]:
    """Return the accounts with limits in which a request counts, the narrowest first."""
    all_of_it = (
        (model_account(model), of_model(cluster, model, tenant)),
        (key_account(key_id), of_key(cluster, key_id)),
        (OF_TENANT, of_tenant(cluster, tenant)),
    )
    return [(account, limits) for account, limits in all_of_it if limits.some]


def has_limits(cluster: Cluster, tenant: TenantId, key_id: str, model: str) -> bool:
    """Return whether a request counts in any account with limits."""
    whole = cluster.tenants.get(tenant)
    if whole is not None and (whole.requests_per_minute or whole.tokens_per_minute):
        return True
    key, found = cluster.keys.get(key_id), cluster.models.get(model)
    if key is not None and key.limits.some:
        return True
    return (
        found is not None
        and bool(found.limits)
        and at_model(found.limits, found.tenant, tenant).some
    )
