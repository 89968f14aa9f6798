"""Time, as one small protocol with two twins: the machine's own, and the simulation's
(tests/sim/clock.py).

`wall_ns` is for people and for facts' `at`; durations and leases are only ever measured with
`boot_ns`, which never goes back and counts suspend.
"""

import logging
import time
from typing import Final, Protocol

# Two machines' wall clocks further apart than this are worth a word: times shown to people are
# wrong by as much.
APART_MAX_S: Final = 60.0
WARNINGS_MAX: Final = 64

logger = logging.getLogger(__name__)


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


class ClockWatch:
    """Says, once of each writer, that its wall clock and this machine's are far apart."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.said: dict[str, None] = {}

    def look(self, writer: str, at_ns: int) -> None:
        """`at_ns` is of a commit that was stored just now."""
        apart_s = (at_ns - self.clock.wall_ns()) / 1e9
        if abs(apart_s) <= APART_MAX_S or writer in self.said or len(self.said) >= WARNINGS_MAX:
            return
        self.said[writer] = None
        logger.warning(
            "the clock of %s is %.0f s %s this machine's (or this process stood still as "
            "long): times of its facts are shown wrong, "
            "limits and leases are not affected. Set both machines' clocks: timedatectl "
            "set-ntp true, or chronyc makestep",
            *(writer, abs(apart_s), "ahead of" if apart_s > 0 else "behind"),
        )


def warn_if_behind(clock: Clock, writer: str, last_at_ns: int) -> None:
    """A writer begins whose subject was last written at `last_at_ns`, maybe on another machine."""
    behind_s = (last_at_ns - clock.wall_ns()) / 1e9
    if behind_s > APART_MAX_S:
        logger.warning(
            "this machine's clock is %.0f s behind the last commit of %s: until it has "
            "caught up, new commits carry that time. "
            "Set the clock: timedatectl set-ntp true, or chronyc makestep",
            *(behind_s, writer),
        )
