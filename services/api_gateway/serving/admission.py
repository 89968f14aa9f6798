"""Decides whether a request may wait for a model.

Waiting requests are bounded in tokens: for each tenant, and for the model as a whole. The number of
a tenant's waiting requests is bounded too. Each lower
band may fill less of the model's bound, so that a flood of a low band leaves room for a higher one.
A request that cannot meet its deadline is refused at once. Pure. Tests:
tests/unit/test_serving_admission.py.
"""

from typing import Final, NamedTuple

SECOND_NS: Final = 1_000_000_000
# Retry-After while the model's token rate is not known yet, and its longest value.
UNKNOWN_S: Final = 5
RETRY_MAX_S: Final = 600
# Reasons of a refusal.
TENANT_FULL: Final = "tenant_full"
TENANT_REQUESTS: Final = "tenant_requests"
MODEL_FULL: Final = "model_full"
TOO_LATE: Final = "too_late"


class Bounds(NamedTuple):
    """Bounds of one model's waiting requests.

    The highest band may fill the model up to `model_tokens`, the lowest one up to `lowest_tokens`.
    `wait_ns` is the longest time that a request waits. `tenant_requests` bounds the requests of one
    tenant that wait for all models of the gateway, 0 for no bound: each holds a connection.
    """

    tenant_tokens: int
    model_tokens: int
    lowest_tokens: int
    bands: int
    wait_ns: int
    tenant_requests: int = 0

    def of_band(self, band: int) -> int:
        """Return how many tokens may wait for the model when a request of `band` arrives.

        Band 0 is the highest.
        """
        if self.bands < 2:
            return self.model_tokens
        lowered = min(band, self.bands - 1) * (self.model_tokens - self.lowest_tokens)
        return self.model_tokens - lowered // (self.bands - 1)


class Arrival(NamedTuple):
    """A request that has just arrived. `deadline_ns` of its first token, 0 if it has none."""

    tokens: int
    band: int = 0
    deadline_ns: int = 0


class Waiting(NamedTuple):
    """The tokens that wait for the model now.

    `ahead` will be served before the new request; `tokens_per_s` is the rate at which the model's
    replicas take waiting tokens, 0 if it is not known. `tenants` counts those with waiting requests
    and the one that asks. `tenant_requests` are the tenant's requests that wait for any model.
    """

    of_tenant: int
    of_model: int
    ahead: int
    tokens_per_s: int
    tenants: int = 1
    tenant_requests: int = 0


class Admitted(NamedTuple):
    """The request may wait until `expires_ns`."""

    expires_ns: int


class Refused(NamedTuple):
    """The request may not wait. `status` is that of the HTTP answer."""

    reason: str
    status: int
    retry_after_s: int


def admit(arrival: Arrival, waiting: Waiting, bounds: Bounds, now_ns: int) -> Admitted | Refused:
    """Return whether the request may wait, and until when or when to try again.

    A request that is larger than a bound may wait if nothing else does, because no other moment is
    better for it. A full model refuses no tenant that has less than an equal part of the bound:
    otherwise those who ask most often would get what becomes free.
    """
    expires_ns = now_ns + bounds.wait_ns
    if arrival.deadline_ns:
        expires_ns = min(expires_ns, arrival.deadline_ns)
        if now_ns + ahead_ns(waiting) >= arrival.deadline_ns:
            return Refused(TOO_LATE, 503, retry_after_s(waiting))
    if 0 < bounds.tenant_requests <= waiting.tenant_requests:
        return Refused(TENANT_REQUESTS, 429, retry_after_s(waiting))
    if waiting.of_tenant and waiting.of_tenant + arrival.tokens > bounds.tenant_tokens:
        return Refused(TENANT_FULL, 429, retry_after_s(waiting))
    if waiting.of_model and _fills_model(arrival, waiting, bounds.of_band(arrival.band)):
        return Refused(MODEL_FULL, 429, retry_after_s(waiting))
    return Admitted(expires_ns)


def _fills_model(arrival: Arrival, waiting: Waiting, bound: int) -> bool:
    own = waiting.of_tenant + arrival.tokens
    return waiting.of_model + arrival.tokens > bound and own * waiting.tenants > bound


def ahead_ns(waiting: Waiting) -> int:
    """Return how long the requests ahead keep the replicas busy; 0 if the rate is not known."""
    if not waiting.tokens_per_s:
        return 0
    return waiting.ahead * SECOND_NS // waiting.tokens_per_s


def retry_after_s(waiting: Waiting) -> int:
    """Return after how many whole seconds the requests ahead are gone."""
    if not waiting.tokens_per_s:
        return UNKNOWN_S
    return min(RETRY_MAX_S, max(1, -(-waiting.ahead // waiting.tokens_per_s)))
