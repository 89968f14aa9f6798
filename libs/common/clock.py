"""Time, as one small protocol with two twins: the machine's own, and the simulation's (tests/sim/clock.py).

`wall_ns` is for people and for facts' `at`; durations and leases are only ever measured with `boot_ns`, which never
goes back and counts suspend.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """Both in nanoseconds."""

    def wall_ns(self) -> int: ...

    def boot_ns(self) -> int: ...


class SystemClock:
    """This machine's clocks: CLOCK_REALTIME and CLOCK_BOOTTIME."""

    def wall_ns(self) -> int:
        return time.time_ns()

    def boot_ns(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
