"""Bounds the bytes that each tenant's requests add to the log in a minute: a token bucket by
tenant, folded from the log.

Pure. Every gateway folds the same commits with the same times, so gateways whose clocks agree know
the same levels; beside that a gateway counts what it has not read back yet. A time ahead of the
reader's own clock counts as now, so that one gateway's wrong clock keeps no level from draining at
the others. Held by tests/unit/test_allowance.py.
"""

from typing import Final

MINUTE_NS: Final = 60_000_000_000
SECOND_NS: Final = 1_000_000_000
# Tenants beyond this many that took nothing for a minute are forgotten.
KEPT_MAX: Final = 1_000


class Allowance:
    """`level` is what a tenant took and what has not drained away since `at`; it drains by
    `per_minute` bytes in a minute.
    """

    def __init__(self, per_minute: int) -> None:
        self.per_minute = per_minute
        self.level: dict[str, int] = {}
        self.at: dict[str, int] = {}
        self.under_way: dict[str, int] = {}

    def recorded(self, tenant: str, size: int, at_ns: int, now_ns: int) -> None:
        """Count `size` bytes that a commit of `at_ns` holds for this tenant; `now_ns` is the
        reader's clock, which bounds every time.
        """
        at_ns = min(at_ns, now_ns)
        self.level[tenant] = self._left(tenant, at_ns) + size
        self.at[tenant] = min(max(at_ns, self.at.get(tenant, 0)), now_ns)
        if len(self.level) > KEPT_MAX:
            self._forget(at_ns)

    def wait_s(self, tenant: str, size: int, now_ns: int) -> int:
        """Return after how many seconds these bytes may be recorded; 0 for now."""
        if self.at.get(tenant, 0) > now_ns:  # this machine's own clock was set back
            self.at[tenant] = now_ns
        over = self._left(tenant, now_ns) + self.under_way.get(tenant, 0) + size - self.per_minute
        return -(-over * MINUTE_NS // (self.per_minute * SECOND_NS)) if over > 0 else 0

    def begin(self, tenant: str, size: int) -> None:
        """Count bytes that are on their way to the log."""
        self.under_way[tenant] = self.under_way.get(tenant, 0) + size

    def end(self, tenant: str, size: int) -> None:
        """Uncount bytes that are folded, or never will be."""
        self.under_way[tenant] -= size
        if not self.under_way[tenant]:
            del self.under_way[tenant]

    def _left(self, tenant: str, now_ns: int) -> int:
        drained = max(0, now_ns - self.at.get(tenant, 0)) * self.per_minute // MINUTE_NS
        return max(0, self.level.get(tenant, 0) - drained)

    def _forget(self, now_ns: int) -> None:
        for tenant in [name for name in self.level if not self._left(name, now_ns)]:
            del self.level[tenant], self.at[tenant]
