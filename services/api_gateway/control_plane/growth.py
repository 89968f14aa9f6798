"""Estimate the growth of the log, and for how many days it has room.

Pure. Tests: tests/unit/test_log_growth.py.
"""

from collections import deque
from typing import Final

SECOND_NS: Final = 1_000_000_000
DAY_NS: Final = 86_400 * SECOND_NS
# Growth is measured over at most a day, with a sample every so often. A shorter time than
# MEASURED_MIN_NS says nothing.
SAMPLE_NS: Final = 300 * SECOND_NS
MEASURED_MIN_NS: Final = 600 * SECOND_NS
SAMPLES_MAX: Final = DAY_NS // SAMPLE_NS
# Parts of its bound, in percent, at which the log needs room soon, and at once.
SOON_PCT: Final = 70
NOW_PCT: Final = 85


class Growth:
    """Samples of the size of the log."""

    def __init__(self) -> None:
        self.samples: deque[tuple[int, int]] = deque(maxlen=SAMPLES_MAX)

    def note(self, now_ns: int, size: int) -> None:
        """Note the size of the log at a time by the boot clock."""
        if not self.samples or now_ns - self.samples[-1][0] >= SAMPLE_NS:
            self.samples.append((now_ns, size))

    def per_day(self, now_ns: int, size: int, age_ns: int) -> int | None:
        """Return the growth in bytes a day; None if it is not known yet.

        While the samples cover too little time, it is the mean over the log's age, which is
        `age_ns` old.
        """
        first_ns, first = self.samples[0] if self.samples else (now_ns, size)
        if now_ns - first_ns >= MEASURED_MIN_NS:
            return max(0, (size - first) * DAY_NS // (now_ns - first_ns))
        if age_ns >= MEASURED_MIN_NS:
            return size * DAY_NS // age_ns
        return None


def days_left(size: int, bound: int, per_day: int | None) -> float | None:
    """Return the days until the log is full; None if it has no bound or does not grow."""
    if not bound or not per_day:
        return None
    return max(0, bound - size) * 10 // per_day / 10


def warning(size: int, bound: int) -> str:
    """Return what an operator must do about the size of the log; empty if nothing."""
    percent = 100 * size // bound if bound else 0
    if percent < SOON_PCT:
        return ""
    when = "now" if percent >= NOW_PCT else "soon"
    return (
        f"the log is {percent} % full: make room {when} (docs/howto/trim.md), or raise "
        "MUSTER_STREAM_BYTES"
    )
