"""Decides after which time a request is sent to a second replica too.

That is a hedge: the answer that begins first is used, and the other is cancelled. The time is the
95th percentile of the times within which the model's answers began of late, and at least twice what
the router expected for this prompt, because a long prompt is not slow. Pure. Tests:
tests/unit/test_serving_hedging.py.
"""

from collections import deque
from typing import Final

MS_NS: Final = 1_000_000
# The percentile is known after so many answers, and counts so many of the last ones.
SAMPLES_MIN: Final = 64
SAMPLES_MAX: Final = 256
# It is computed again after so many more answers.
EVERY: Final = 32
PERCENT: Final = 95
# Faster answers are not hedged: a second request would take about as long.
AFTER_MIN_NS: Final = 20 * MS_NS
EXPECTED_FACTOR: Final = 2


class Hedging:
    """The times until the answers of one model began."""

    def __init__(self) -> None:
        self._streams = _Times()
        self._others = _Times()

    def began(self, is_streamed: bool, took_ns: int) -> None:
        """Note the time after which an answer began; without a stream, after which it came."""
        (self._streams if is_streamed else self._others).add(took_ns)

    def after_ns(self, is_streamed: bool, expected_ns: int) -> int | None:
        """Return the time after which a request is hedged; None while too little is known."""
        late_ns = (self._streams if is_streamed else self._others).late_ns
        if late_ns is None:
            return None
        return max(AFTER_MIN_NS, late_ns, EXPECTED_FACTOR * expected_ns)


class _Times:
    """The times of one kind of answers; `late_ns` is their percentile."""

    def __init__(self) -> None:
        self.late_ns: int | None = None
        self._last: deque[int] = deque(maxlen=SAMPLES_MAX)
        self._added = 0

    def add(self, took_ns: int) -> None:
        self._last.append(took_ns)
        self._added += 1
        if self._added >= SAMPLES_MIN and self._added % EVERY == 0:
            self.late_ns = sorted(self._last)[len(self._last) * PERCENT // 100]
