"""Errors that a device mends by itself: counted per device and window, and told of when there are more than the site allows. Pure.

One alert in a window, however many more there are. A counter that went back began anew: a driver that was loaded again.
Tests: tests/unit/test_health_watch.py.
"""

from collections import deque
from typing import Final

import msgspec

from libs.common.model import GpuId
from services.node_agent.drivers.readings import Sample

SECOND_NS: Final = 1_000_000_000
# Name in the catalogue -> the reading, and what it counts.
COUNTERS: Final = {
    "corrected": ("ecc_corrected", "corrected errors"),
    "link_errors": ("link_errors", "errors of its links, which sent again"),
    "pcie_replays": ("pcie_replays", "packets sent again over PCIe"),
}


class Count(msgspec.Struct):
    """When each value of the counter was first read, within a window; `quiet_until_ns`: no alert before."""

    seen: deque[tuple[int, int]] = msgspec.field(default_factory=deque)
    quiet_until_ns: int = 0


class Counts:
    """`most`: by name how many in a window of `window_s` are not told of."""

    def __init__(self, most: dict[str, int], window_s: int) -> None:
        self.most, self.window_s = most, window_s
        self.counts: dict[tuple[GpuId, str], Count] = {}

    def looked(self, uuid: GpuId, sample: Sample) -> list[tuple[str, str]]:
        """What is to be told of: the name, and how many in words."""
        told = []
        for name, (reading, what) in COUNTERS.items():
            value = getattr(sample, reading)
            if isinstance(value, int) and (more := self._count(self.counts.setdefault((uuid, name), Count()), value, sample.at_ns, name)):
                told.append((name, f"{more} {what} within {self.window_s} s"))
        return told

    def _count(self, count: Count, value: int, at_ns: int, name: str) -> int:
        """How many more there are than allowed to be silent about; 0 while there is nothing to tell."""
        seen, window_ns = count.seen, self.window_s * SECOND_NS
        if seen and value < seen[-1][1]:
            seen.clear()
        if not seen or value > seen[-1][1]:
            seen.append((at_ns, value))
        while at_ns - seen[0][0] > window_ns and len(seen) > 1:
            seen.popleft()
        more = value - seen[0][1]
        if more <= self.most[name] or at_ns < count.quiet_until_ns:
            return 0
        seen.clear()
        seen.append((at_ns, value))
        count.quiet_until_ns = at_ns + window_ns
        return more
