"""A value's own baseline: its moving average, and how far it usually is from that.

Pure. The value is compared with its own past, not with a data sheet. Tests:
tests/unit/test_fabric_fit.py.
"""

from typing import Final

import msgspec

# The weight of a new value is one part in WEIGHT, more while there are few.
WEIGHT: Final = 8
# A baseline with fewer values than this rules nothing out.
VALUES_MIN: Final = 5
DEVIATIONS: Final = 4
# The smallest drop that counts, in percent of the average: after a calm history 1 % is no fault.
DROP_PERCENT: Final = 10


class Baseline(msgspec.Struct, frozen=True, array_like=True):
    """The moving average of a value, the moving absolute deviation from it, and their number."""

    usual: int = 0
    spread: int = 0
    values: int = 0


def updated(before: Baseline, value: int) -> Baseline:
    """Return the baseline with one more value."""
    if not before.values:
        return Baseline(value, 0, 1)
    parts = min(WEIGHT, before.values + 1)
    off = abs(value - before.usual)
    return Baseline(
        before.usual + (value - before.usual) // parts,
        before.spread + (off - before.spread) // parts,
        min(before.values + 1, 1 << 20),
    )


def is_below(baseline: Baseline, value: int) -> bool:
    """Return whether the value is far below what it usually is."""
    if baseline.values < VALUES_MIN:
        return False
    drop = max(DEVIATIONS * baseline.spread, baseline.usual * DROP_PERCENT // 100)
    return value < baseline.usual - drop
