"""Durations, ages and instants on the command line."""

from datetime import UTC, datetime

import pytest

from libs.cli.flags.durations import (
    age,
    between,
    instant_option,
    show_age,
    show_duration,
)

NOW = datetime(2025, 6, 1, 12, 0, tzinfo=UTC)


def test_a_duration_is_shown_in_its_two_largest_units() -> None:
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


def test_an_event_that_has_not_happened_has_no_age() -> None:
    assert (age(None, NOW), between(None, None, NOW)) == ("-", "-")


def test_the_run_time_of_a_running_job_ends_now() -> None:
    assert between("2025-06-01T11:59:00.123Z", None, NOW) == "59s"
    assert between("2025-06-01T11:59:00Z", "2025-06-01T11:59:30Z", NOW) == "30s"


def test_since_accepts_a_duration_or_an_instant() -> None:
    assert instant_option("10m", NOW) == "2025-06-01T11:50:00+00:00"
    assert instant_option("2025-05-31T00:00:00Z", NOW) == "2025-05-31T00:00:00+00:00"
    with pytest.raises(ValueError, match="neither"):
        instant_option("yesterday", NOW)
