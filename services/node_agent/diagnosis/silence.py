"""Measure how long the attempts of this node have shown no sign of progress. Pure.

Signs are the job's output, its checkpoint, and the bytes that its processes read and wrote. CPU
time is no sign, because a process that waits for a device spins. Tests:
tests/unit/test_diagnosis_silence.py.
"""

from collections import deque
from collections.abc import Collection, Mapping
from typing import Final

SECOND_NS: Final = 1_000_000_000
# The time over which errors of links count, and the samples that are kept of it.
WINDOW_NS: Final = 300 * SECOND_NS
SAMPLES_MAX: Final = 64

Signs = tuple[int, ...]


class Silence:
    """The last change of each attempt's signs, and when a gateway was last told.

    Times are of the boot clock.
    """

    def __init__(self) -> None:
        self.signs: dict[str, tuple[Signs, int]] = {}
        self.told_ns: dict[str, int] = {}

    def keep(self, keys: Collection[str]) -> None:
        """Forget all other attempts."""
        self.signs = {key: seen for key, seen in self.signs.items() if key in keys}
        self.told_ns = {key: told for key, told in self.told_ns.items() if key in keys}

    def note(self, key: str, signs: Signs, now_ns: int) -> None:
        before = self.signs.get(key)
        if before is None or before[0] != signs:
            self.signs[key] = signs, now_ns
            self.told_ns.pop(key, None)

    def excuse(self, key: str, before: Signs, after: Signs) -> None:
        """Take over signs that a diagnosis changed, as no sign of progress.

        `before` are the signs at its beginning. Progress that was not noted by then still counts.
        """
        seen = self.signs.get(key)
        if seen is not None and seen[0] == before:
            self.signs[key] = after, seen[1]

    def silent_s(self, key: str, now_ns: int) -> int:
        """Return the seconds since the last sign; -1 if the attempt was never looked at."""
        seen = self.signs.get(key)
        return -1 if seen is None else (now_ns - seen[1]) // SECOND_NS

    def is_due(self, key: str, now_ns: int, after_s: int) -> bool:
        """Return whether a gateway must be told now: after the time, and again each such time."""
        if not 0 < after_s <= self.silent_s(key, now_ns):
            return False
        told_ns = self.told_ns.get(key)
        if told_ns is not None and now_ns - told_ns < after_s * SECOND_NS:
            return False
        self.told_ns[key] = now_ns
        return True


class LinkErrors:
    """The counters of link errors of each device over the last WINDOW_NS."""

    def __init__(self) -> None:
        self.counts: dict[str, deque[tuple[int, int]]] = {}

    def note(self, counts: Mapping[str, int], now_ns: int) -> None:
        for uuid, count in counts.items():
            seen = self.counts.setdefault(uuid, deque(maxlen=SAMPLES_MAX))
            if seen and count < seen[-1][1]:
                seen.clear()  # the driver was loaded again
            seen.append((now_ns, count))
            while now_ns - seen[0][0] > WINDOW_NS:
                seen.popleft()

    def rise(self, uuid: str, since_ns: int) -> int:
        """Return the errors within the window and since this time; -1 if none was ever read."""
        seen = self.counts.get(uuid)
        if not seen:
            return -1
        before = [count for at_ns, count in seen if at_ns <= since_ns]
        return seen[-1][1] - (before[-1] if before else seen[0][1])
