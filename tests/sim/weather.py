"""Random faults: the rates of a run, and the dice that all faulty parts of the world share.

The parts call `Weather.hit` at each append, read and message. It returns False once the storm is
over. Every hit is counted and kept with its virtual time, so that the run of a seed can be printed
as a story. Planned faults are in `faults.py`.
"""

import random
from typing import Final

import msgspec

STORY_MAX: Final = 20_000


class Rates(msgspec.Struct):
    """Probabilities per operation, seconds where a name says so."""

    append_refused: float = 0.0
    append_unknown_stored: float = 0.0
    append_unknown_lost: float = 0.0
    append_late: float = 0.0
    append_twice: float = 0.0
    kill_before_store: float = 0.0
    kill_after_store: float = 0.0
    log_silent: float = 0.0
    read_lag: float = 0.0
    bus_lost: float = 0.0
    bus_late: float = 0.0
    bus_twice: float = 0.0
    launch_slow: float = 0.0
    launch_refused: float = 0.0
    kill_in_purge: float = 0.0
    cancellation_lost: float = 0.0
    lag_max_s: float = 0.4
    late_max_s: float = 3.0


class Weather:
    """The dice of one run."""

    def __init__(self, seed: int, rates: Rates) -> None:
        self.random = random.Random(f"weather {seed}")
        self.rates = rates
        self.stormy = True
        self.now = lambda: 0.0
        self.counts: dict[str, int] = {}
        self.story: list[tuple[float, str]] = []

    def hit(self, kind: str, where: str) -> bool:
        """Return whether the fault `kind` happens here and now."""
        if not self.stormy:
            return False
        rate: float = getattr(self.rates, kind)
        if rate == 0.0 or self.random.random() >= rate:
            return False
        self.tell(kind, where)
        return True

    def tell(self, kind: str, where: str) -> None:
        """Write one fault into the story of the run."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if len(self.story) < STORY_MAX:
            self.story.append((self.now(), f"{kind} {where}"))

    def between(self, low: float, high: float) -> float:
        return self.random.uniform(low, high)
