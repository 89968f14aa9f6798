"""Error counters of devices: report counts above a bound within a window. Pure.

There is one report per window. A counter that went back was reset, because its driver was loaded
again. Tests: tests/unit/test_health_watch.py.
"""

from collections import deque
from collections.abc import Mapping
from typing import Final

import msgspec

from libs.common.model import GpuId
from services.node_agent.drivers.readings import Lacking, Sample

SECOND_NS: Final = 1_000_000_000
# Name in the catalogue -> the reading, and a description of what it counts.
COUNTERS: Final = {
    "corrected": ("ecc_corrected", "corrected errors"),
    "uncorrected": ("ecc_uncorrected", "uncorrected errors"),
    "link_errors": ("link_errors", "errors of its links, which sent again"),
    "pcie_replays": ("pcie_replays", "packets sent again over PCIe"),
}


class Count(msgspec.Struct):
    """The times at which each value of a counter was first read within a window; no report before
    `quiet_until_ns`.
    """

    seen: deque[tuple[int, int]] = msgspec.field(default_factory=deque)
    quiet_until_ns: int = 0


class Bound(msgspec.Struct, frozen=True):
    """The highest count in a window that is not reported."""

    most: int
    window_s: int


class Counts:
    """The counters of all devices."""

    def __init__(self) -> None:
        self.counts: dict[tuple[GpuId, str], Count] = {}

    def rises(
        self, uuid: GpuId, sample: Sample, bounds: Mapping[str, Bound]
    ) -> list[tuple[str, str]]:
        """Return the errors to report: name and description.

        A counter without a bound is not counted.
        """
        errors = []
        for name, (reading, what) in COUNTERS.items():
            value, bound = getattr(sample, reading), bounds.get(name)
            if not isinstance(value, int) or bound is None:
                continue
            if more := _count(
                self.counts.setdefault((uuid, name), Count()), value, sample.at_ns, bound
            ):
                worst = _worst_link(sample) if reading == "link_errors" else ""
                errors.append((name, f"{more} {what} within {bound.window_s} s{worst}"))
        return errors


def _worst_link(sample: Sample) -> str:
    """Return the link with the most errors, if the driver counts per link."""
    if isinstance(sample.link_counts, Lacking):
        return ""
    worst = max(sample.link_counts, key=lambda each: each.count, default=None)
    return (
        f"; link {worst.link} has the most ({worst.count} x {worst.kind})"
        if worst is not None
        else ""
    )


def _count(count: Count, value: int, at_ns: int, bound: Bound) -> int:
    """Return how many errors are over the bound; 0 if there is nothing to report."""
    seen, window_ns = count.seen, bound.window_s * SECOND_NS
    if seen and value < seen[-1][1]:
        seen.clear()
    if not seen or value > seen[-1][1]:
        seen.append((at_ns, value))
    while at_ns - seen[0][0] > window_ns and len(seen) > 1:
        seen.popleft()
    more = value - seen[0][1]
    if more <= bound.most or at_ns < count.quiet_until_ns:
        return 0
    seen.clear()
    seen.append((at_ns, value))
    count.quiet_until_ns = at_ns + window_ns
    return more
