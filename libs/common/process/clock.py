"""Clocks: one protocol with two twins, the machine's and the simulation's (tests/sim/clock.py).

`wall_ns` is for people and for the times of facts. Durations and leases are measured with `boot_ns`
only, which never goes back and includes suspend.
"""

import logging
import time
from typing import Final, Protocol

# Difference between two machines' wall clocks that causes a warning: displayed times are wrong by
# as much.
APART_MAX_S: Final = 60.0
WARNINGS_MAX: Final = 64

logger = logging.getLogger(__name__)


class Clock(Protocol):
    """A wall clock and a boot clock, in nanoseconds."""

    def wall_ns(self) -> int: ...

    def boot_ns(self) -> int: ...


class SystemClock:
    """This machine's clocks: CLOCK_REALTIME and CLOCK_BOOTTIME."""

    def wall_ns(self) -> int:
        return time.time_ns()

    def boot_ns(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class ClockWatch:
    """Warns, once per writer, that its wall clock and this machine's differ."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.warned: dict[str, None] = {}

    def look(self, writer: str, at_ns: int) -> None:
        """Compare the time `at_ns` of a commit that was just stored."""
        apart_s = (at_ns - self.clock.wall_ns()) / 1e9
        if abs(apart_s) <= APART_MAX_S or writer in self.warned or len(self.warned) >= WARNINGS_MAX:
            return
        self.warned[writer] = None
        logger.warning(
            "the clock of %s is %.0f s %s this machine's (or this process was paused for as "
            "long): times of its facts are displayed wrong; limits and leases are not affected. "
            "Set the clocks of both machines: timedatectl set-ntp true, or chronyc makestep",
            *(writer, abs(apart_s), "ahead of" if apart_s > 0 else "behind"),
        )


def warn_if_behind(clock: Clock, writer: str, last_at_ns: int) -> None:
    """Warn if this clock is behind the last commit of a writer that starts here.

    Another machine may have written that commit.
    """
    behind_s = (last_at_ns - clock.wall_ns()) / 1e9
    if behind_s > APART_MAX_S:
        logger.warning(
            "this machine's clock is %.0f s behind the last commit of %s: new commits continue "
            "from that time until the clock has caught up. "
            "Set the clock: timedatectl set-ntp true, or chronyc makestep",
            *(behind_s, writer),
        )
