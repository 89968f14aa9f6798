"""Learns how long a model without replicas takes to wake, and says how long is left.

The time counts from the first request that waits to the first ready replica. The expected time is
the upper quartile of the last wakes: rather a little too long than too short. Pure. Tests:
tests/unit/test_serving_wake_time.py.
"""

from collections import deque
from typing import Final

SECOND_NS: Final = 1_000_000_000
WAKES_MAX: Final = 8
# A wake that takes longer than expected is expected to take this part of its time more.
OVERDUE_PART: Final = 4


class WakeTime:
    """The wakes of one model."""

    def __init__(self) -> None:
        self._took_ns: deque[int] = deque(maxlen=WAKES_MAX)
        self._began_ns: int | None = None

    def begin(self, now_ns: int) -> None:
        """Note that a request waits for the first replica, and that none waited before."""
        self._began_ns = now_ns

    def woken(self, now_ns: int) -> None:
        """Note that a replica is ready. Calls without a wake before are ignored."""
        if self._began_ns is not None:
            self._took_ns.append(now_ns - self._began_ns)
            self._began_ns = None

    def forget(self) -> None:
        """Note that no request waits for the model any more."""
        self._began_ns = None

    def left_ns(self, now_ns: int) -> int | None:
        """Return the time until a replica should be ready; None if no wake was seen yet."""
        if not self._took_ns:
            return None
        expected_ns = sorted(self._took_ns)[3 * len(self._took_ns) // 4]
        waited_ns = now_ns - self._began_ns if self._began_ns is not None else 0
        if waited_ns < expected_ns:
            return expected_ns - waited_ns
        return max(1, waited_ns // OVERDUE_PART)

    def left_s(self, now_ns: int) -> int | None:
        """Return `left_ns` in whole seconds, at least one."""
        left_ns = self.left_ns(now_ns)
        return -(-left_ns // SECOND_NS) if left_ns is not None else None
