"""Settings for tests of the fabric, and when this process first saw each round.

Pure, and derived: a part of `State`. Rounds are timed by this machine's boot clock.
"""

from typing import Final

import msgspec

from libs.common.settings.settings import Settings

MS: Final = 1_000_000
# A preflight takes this long at most, and measures no pair again whose result is not older.
PREFLIGHT_NS: Final = 5_000 * MS
PREFLIGHT_FRESH_NS: Final = 6 * 3_600 * 1_000 * MS


class FabricRules(msgspec.Struct, frozen=True):
    """The settings of fabric tests.

    A test begins by itself `every_ns` after the last one; 0: never. A pair may measure for
    `pair_ns`, with messages of `bulk_bytes`. `drain` allows the scheduler to drain suspect nodes. A
    gang avoids what its preflight found suspect for `exclude_ns`. Without `preflights`, gangs start
    at once: on copies of the state, for questions.
    """

    every_ns: int = 0
    pair_ns: int = 200 * MS
    bulk_bytes: int = 8 << 20
    drain: bool = False
    measured_first: bool = False
    preflights: bool = True
    exclude_ns: int = 600_000 * MS


DEFAULT_RULES: Final = FabricRules()


def fabric_rules(settings: Settings) -> FabricRules:
    """Return the rules that these settings mean."""
    return FabricRules(
        every_ns=settings.fabric_every_s * 1_000 * MS,
        pair_ns=settings.fabric_pair_ms * MS,
        bulk_bytes=settings.fabric_bulk_kib << 10,
        drain=settings.fabric_drain > 0,
        measured_first=settings.fabric_measured_racks > 0,
        exclude_ns=settings.fabric_exclude_s * 1_000 * MS,
    )


class RoundClock:
    """The times at which this process first saw the present round of each test."""

    def __init__(self) -> None:
        self.seen: dict[str, tuple[int, int]] = {}

    def since(self, test: str, number: int, now_ns: int) -> int:
        """Return how long ago this process first saw the round."""
        if self.seen.get(test, (0, 0))[0] != number:
            self.seen[test] = (number, now_ns)
        return now_ns - self.seen[test][1]

    def forget(self, test: str) -> None:
        self.seen.pop(test, None)
