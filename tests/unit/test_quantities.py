"""Numbers with nouns, sizes, and months of UTC (libs/common/quantities.py)."""

import pytest

from libs.common.quantities import bytes_of, month_of


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


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4_096),
        ("512MiB", 512 << 20),
        (" 40 GiB ", 40 << 30),
        ("40g", 40 << 30),
        ("40GB", 40_000_000_000),
        ("1.5K", 1_536),
    ],
)
def test_a_size_steps_by_1024_unless_it_is_decimal(text: str, size: int) -> None:
    assert bytes_of(text) == size


@pytest.mark.parametrize("text", ["", "much", "-1", "1e9", "40Gb/s", "4X", "9" * 19])
def test_another_text_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size: write bytes, or for example"):
        bytes_of(text)
