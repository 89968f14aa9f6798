"""Limits of requests and tokens per minute, and the account that each of them bounds.

Pure. A request counts in up to three accounts: its tenant's, its key's, and its tenant's at the
model. An account is named by a text, which gateways and quota give the same meaning. Tests:
tests/unit/test_rate_accounts.py.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

# The account of a tenant over all its keys and models.
OF_TENANT: Final = ""
KEY: Final = "key"
MODEL: Final = "model"
# In a model's limits: each guest without limits of its own.
EACH_GUEST: Final = "*"


class RateLimits(msgspec.Struct, frozen=True):
    """The requests and tokens that an account may use in a minute; 0: no limit."""

    requests_per_minute: int = 0
    tokens_per_minute: int = 0

    @property
    def some(self) -> bool:
        return self.requests_per_minute > 0 or self.tokens_per_minute > 0


NO_LIMITS: Final = RateLimits()


def key_account(key_id: str) -> str:
    return f"{KEY}:{key_id}"


def model_account(name: str) -> str:
    return f"{MODEL}:{name}"


def at_model(limits: Mapping[str, RateLimits], owner: str, tenant: str) -> RateLimits:
    """Return a tenant's limits at a model: its own or, for a guest, those of each guest."""
    own = limits.get(tenant)
    if own is not None:
        return own
    return NO_LIMITS if tenant == owner else limits.get(EACH_GUEST, NO_LIMITS)
