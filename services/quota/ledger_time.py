"""The time by which quota counts minutes of limits: it never goes back, and never stops.

Pure; both clocks are arguments. Tests: tests/unit/test_quota_rates.py, and
tests/integration/test_rate_limits.py.
"""


class LedgerTime:
    """The wall clock's time, or a later one.

    If the wall clock is set back, the time goes on with the boot clock. If an earlier process was
    in a later minute, because its wall clock was ahead, the time goes on from the begin of that
    minute. So a minute of the ledger never lasts longer than a minute.
    """

    def __init__(self, wall_ns: int, boot_ns: int) -> None:
        self.last_ns = wall_ns
        self.last_boot_ns = boot_ns

    def at(self, wall_ns: int, boot_ns: int, minute_ns: int) -> int:
        """Return the time at these clocks. `minute_ns` is the begin of the ledger's minute."""
        passed_ns = boot_ns - self.last_boot_ns
        self.last_ns = max(wall_ns, self.last_ns + passed_ns, minute_ns)
        self.last_boot_ns = boot_ns
        return self.last_ns
