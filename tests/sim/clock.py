"""Simulated twin of `libs.common.process.clock.SystemClock`: one virtual time, read differently by
each process.

A process's wall clock is off by its own skew and may be set to another time at any moment. The boot
clock belongs to a machine. It starts at zero when that machine reboots, and it runs a little fast
or slow.
"""

from typing import Final

from tests.sim.loop import VirtualLoop

# Somewhere in 2026; recorded facts carry it.
EPOCH_NS: Final = 1_780_000_000 * 1_000_000_000


class SimClock:
    """See `libs.common.process.clock.Clock`.

    `booted_s` is the virtual time at which the machine's boot clock was zero.
    """

    def __init__(
        self, loop: VirtualLoop, skew_s: float = 0.0, booted_s: float = 0.0, rate: float = 1.0
    ) -> None:
        self.loop = loop
        self.skew_s = skew_s
        self.booted_s = booted_s
        self.rate = rate

    def wall_ns(self) -> int:
        return EPOCH_NS + int((self.loop.now + self.skew_s) * 1e9)

    def boot_ns(self) -> int:
        return int((self.loop.now - self.booted_s) * self.rate * 1e9) + 1
