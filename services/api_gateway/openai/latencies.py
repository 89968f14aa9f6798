"""The times to the first token, and between tokens, of a model's requests in the last half minute.

They count from the arrival of a request, so its wait in the gateway is part of them. Pure. Tests:
tests/unit/test_openai_latencies.py.
"""

from collections import deque
from typing import Final

SECOND_NS: Final = 1_000_000_000
WINDOW_NS: Final = 30 * SECOND_NS
# Enough for a stable percentile; with more requests the window is shorter.
SAMPLES_MAX: Final = 1_024
US_NS: Final = 1_000


class Latencies:
    """The samples of one model."""

    def __init__(self) -> None:
        self._first: deque[tuple[int, int]] = deque(maxlen=SAMPLES_MAX)
        self._per_token: deque[tuple[int, int]] = deque(maxlen=SAMPLES_MAX)

    def first_token(self, took_ns: int, now_ns: int) -> None:
        """Note the time of a request's first token since its arrival."""
        self._first.append((now_ns, took_ns))

    def ended(self, streamed_ns: int, tokens: int, now_ns: int) -> None:
        """Note the end of a stream: its time since the first token, and the tokens after it."""
        if tokens > 0:
            self._per_token.append((now_ns, streamed_ns // tokens))

    def p90_us(self, now_ns: int) -> tuple[int, int]:
        """Return the 90th percentiles of both in microseconds; 0 without samples."""
        return _p90_us(self._first, now_ns), _p90_us(self._per_token, now_ns)


def _p90_us(samples: deque[tuple[int, int]], now_ns: int) -> int:
    while samples and now_ns - samples[0][0] > WINDOW_NS:
        samples.popleft()
    if not samples:
        return 0
    ordered = sorted(took_ns for _, took_ns in samples)
    return ordered[len(ordered) * 9 // 10] // US_NS
