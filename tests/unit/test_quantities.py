"""Numbers with nouns, and months of UTC (libs/common/quantities.py)."""

import pytest

from libs.common.quantities import month_of


@pytest.mark.parametrize(
    ("instant_s", "month"),
    [
        (0, 197_001),
        (951_782_400, 200_002),
        (1_772_323_199, 202_602),
        (1_772_323_200, 202_603),
        (1_798_761_599, 202_612),
        (1_798_761_600, 202_701),
    ],
)
def test_a_month_begins_at_midnight_utc(instant_s: int, month: int) -> None:
    assert month_of(instant_s * 1_000_000_000) == month
