"""The slope of a curve with its confidence interval.

Pure. Neighbouring samples resemble each other, so the fit is made over the means of BLOCKS equal
spans of time, which hardly do.
"""

from collections.abc import Sequence
from math import sqrt
from typing import Final

import msgspec

BLOCKS: Final = 12
# Student's t for 95 % and BLOCKS - 2 degrees of freedom.
QUANTILE: Final = 2.228
HOUR_S: Final = 3_600.0


class Slope(msgspec.Struct, frozen=True):
    """`per_hour` with half the width of its 95 % interval, in the curve's unit."""

    per_hour: float
    half_width: float
    samples: int

    @property
    def is_flat(self) -> bool:
        """Return whether the interval contains zero."""
        return abs(self.per_hour) <= self.half_width


def slope(times_s: Sequence[float], values: Sequence[float]) -> Slope | None:
    """Return the slope; None if some span of time has no sample."""
    if len(times_s) < BLOCKS or times_s[-1] <= times_s[0]:
        return None
    width = (times_s[-1] - times_s[0]) / BLOCKS
    blocks: list[list[tuple[float, float]]] = [[] for _ in range(BLOCKS)]
    for at_s, value in zip(times_s, values, strict=True):
        blocks[min(BLOCKS - 1, int((at_s - times_s[0]) / width))].append((at_s, value))
    if not all(blocks):
        return None
    x = [sum(at_s for at_s, _ in block) / len(block) / HOUR_S for block in blocks]
    y = [sum(value for _, value in block) / len(block) for block in blocks]
    mean_x, mean_y = sum(x) / BLOCKS, sum(y) / BLOCKS
    spread = sum((each - mean_x) ** 2 for each in x)
    per_hour = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread
    left = sum((b - mean_y - per_hour * (a - mean_x)) ** 2 for a, b in zip(x, y, strict=True))
    half_width = QUANTILE * sqrt(left / (BLOCKS - 2) / spread)
    return Slope(per_hour=per_hour, half_width=half_width, samples=len(times_s))


def rise(values: Sequence[float]) -> float:
    """Return by how much the largest value of the last third exceeds that of the first."""
    third = len(values) // 3
    return max(values[-third:]) - max(values[:third]) if third else 0.0
