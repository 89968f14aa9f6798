"""Bounds the bytes that each tenant's requests add to the log in a minute: a token bucket per
tenant.

Pure. The buckets are folded from the log: every gateway folds the same commits with the same times,
so gateways whose clocks agree know the same levels. In addition a gateway counts its own bytes that
are not folded yet. A time that is ahead of the reader's clock counts as now, so that one gateway's
wrong clock does not stop the buckets of the others from draining. Tests:
tests/unit/test_allowance.py.
"""

from typing import Final

MINUTE_NS: Final = 60_000_000_000
SECOND_NS: Final = 1_000_000_000
# If more tenants than this are known, those with an empty bucket are forgotten.
KEPT_MAX: Final = 1_000


class Allowance:
    """The token buckets of all tenants.

    `level` is the number of bytes in a tenant's bucket at the time `at`. A bucket drains by
    `per_minute` bytes in a minute. `under_way` are bytes that are not folded yet.
    """

    def __init__(self, per_minute: int) -> None:
        self.per_minute = per_minute
        self.level: dict[str, int] = {}
        self.at: dict[str, int] = {}
        self.under_way: dict[str, int] = {}

    def recorded(self, tenant: str, size: int, at_ns: int, now_ns: int) -> None:
        """Count `size` bytes of this tenant in a commit of time `at_ns`, at most `now_ns`."""
        at_ns = min(at_ns, now_ns)
        self.level[tenant] = self._current_level(tenant, at_ns) + size
        self.at[tenant] = min(max(at_ns, self.at.get(tenant, 0)), now_ns)
        if len(self.level) > KEPT_MAX:
            self._forget(at_ns)

    def wait_s(self, tenant: str, size: int, now_ns: int) -> int:
        """Return the seconds until these bytes may be recorded; 0 for now."""
        if self.at.get(tenant, 0) > now_ns:  # this machine's own clock was set back
            self.at[tenant] = now_ns
        over = (
            self._current_level(tenant, now_ns)
            + self.under_way.get(tenant, 0)
            + size
            - self.per_minute
        )
        return -(-over * MINUTE_NS // (self.per_minute * SECOND_NS)) if over > 0 else 0

    def begin(self, tenant: str, size: int) -> None:
        """Count bytes that are on their way to the log."""
        self.under_way[tenant] = self.under_way.get(tenant, 0) + size

    def end(self, tenant: str, size: int) -> None:
        """Uncount bytes that are folded, or that were not recorded."""
        self.under_way[tenant] -= size
        if not self.under_way[tenant]:
            del self.under_way[tenant]

    def _current_level(self, tenant: str, now_ns: int) -> int:
        drained = max(0, now_ns - self.at.get(tenant, 0)) * self.per_minute // MINUTE_NS
        return max(0, self.level.get(tenant, 0) - drained)

    def _forget(self, now_ns: int) -> None:
        for tenant in [name for name in self.level if not self._current_level(name, now_ns)]:
            del self.level[tenant], self.at[tenant]
