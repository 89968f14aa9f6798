"""Bounds what one tenant may hold of something that all tenants of a process share.

Open requests and kept bytes of a gateway are such things, and threads of an agent. A tenant may
hold at most FREE_TIMES as much as is free at the moment (the dynamic thresholds of Choudhury and
Hahne). One tenant alone can hold 4/5 of all, and two can hold 4/9 each. A tenant that comes later
finds something free if the whole is large. Of a small number, a few tenants together can hold all:
of 32 places three tenants that come one after another get 26, 5 and 1. Pure.
Tests: tests/unit/test_open_share.py.
"""

from typing import Final

FREE_TIMES: Final = 4
# Retry-After of a refusal: a share is free again when any other request ends.
BUSY_S: Final = 1
# Why a tenant cannot have more.
TENANT_FULL: Final = "tenant_full"
ALL_FULL: Final = "all_full"


class OpenShare:
    """The amounts that tenants hold of one shared quantity, at most `most` in all."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0
        self.of_tenant: dict[str, int] = {}

    def take(self, tenant: str, amount: int = 1) -> str:
        """Count what the tenant takes; return why it cannot have it, empty if it can."""
        free, own = self.most - self.held, self.of_tenant.get(tenant, 0) + amount
        if amount > free:
            return ALL_FULL
        if own > FREE_TIMES * free:
            return TENANT_FULL
        self.of_tenant[tenant] = own
        self.held += amount
        return ""

    def give_back(self, tenant: str, amount: int = 1) -> None:
        """Count no longer what the tenant took."""
        self.held -= amount
        if left := self.of_tenant.pop(tenant, 0) - amount:
            self.of_tenant[tenant] = left
