"""How many bytes of the log each tenant's requests may take in a minute: a token bucket by tenant, made of the log.

Pure. Every gateway folds the same commits with the same times, so all of them know the same levels;
beside that a gateway counts what it has not read back yet. Held by tests/unit/test_allowance.py.
"""

from typing import Final

MINUTE_NS: Final = 60_000_000_000
SECOND_NS: Final = 1_000_000_000
# Tenants beyond this many that took nothing for a minute are forgotten.
KEPT_MAX: Final = 1_000


class Allowance:
    """`level` is what a tenant took and what has not drained away since `at`; it drains by `per_minute` bytes in a minute."""

    def __init__(self, per_minute: int) -> None:
        self.per_minute = per_minute
        self.level: dict[str, int] = {}
        self.at: dict[str, int] = {}
        self.under_way: dict[str, int] = {}

    def recorded(self, tenant: str, size: int, at_ns: int) -> None:
        """A commit of the log holds so many bytes for this tenant. Clocks of gateways differ: time never goes back."""
        self.level[tenant] = self._left(tenant, at_ns) + size
        self.at[tenant] = max(at_ns, self.at.get(tenant, 0))
        if len(self.level) > KEPT_MAX:
            self._forget(at_ns)

    def wait_s(self, tenant: str, size: int, now_ns: int) -> int:
        """Return after how many seconds these bytes may be recorded; 0 for now."""
        over = self._left(tenant, now_ns) + self.under_way.get(tenant, 0) + size - self.per_minute
        return -(-over * MINUTE_NS // (self.per_minute * SECOND_NS)) if over > 0 else 0

    def begin(self, tenant: str, size: int) -> None:
        """So many bytes are on their way to the log."""
        self.under_way[tenant] = self.under_way.get(tenant, 0) + size

    def end(self, tenant: str, size: int) -> None:
        """They are folded, or never will be."""
        self.under_way[tenant] -= size
        if not self.under_way[tenant]:
            del self.under_way[tenant]

    def _left(self, tenant: str, now_ns: int) -> int:
        drained = max(0, now_ns - self.at.get(tenant, 0)) * self.per_minute // MINUTE_NS
        return max(0, self.level.get(tenant, 0) - drained)

    def _forget(self, now_ns: int) -> None:
        for tenant in [name for name in self.level if not self._left(name, now_ns)]:
            del self.level[tenant], self.at[tenant]
