"""Sizes in bytes (libs/cli/flags/sizes.py)."""

import pytest

from libs.cli.flags.sizes import parse_size, show_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("12", 12),
        ("12b", 12),
        ("1k", 1024),
        ("10GiB", 10 << 30),
        ("1.5 GB", 3 << 29),
        ("2T", 2 << 40),
    ],
)
def test_units_of_sizes_step_by_1024(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "-1", "ten", "1X", "1 Gi B"])
def test_an_invalid_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size: use"):
        parse_size(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3 << 29, "1.5 GiB"), (3 << 40, "3.0 TiB")],
)
def test_a_size_is_shown_in_the_largest_unit(size: int, text: str) -> None:
    assert show_size(size) == text
