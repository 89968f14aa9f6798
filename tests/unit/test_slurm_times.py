"""Durations and instants as Slurm writes and reads them."""

from datetime import UTC, datetime, timedelta

import pytest

from libs.cli.slurm.times import clock, instant, parse_when
from libs.common.errors import Refused

NOW = datetime(2026, 3, 5, 14, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "text", "long"),
    [
        (5, "0:05", "00:00:05"),
        (3_723, "1:02:03", "01:02:03"),
        (93_784, "1-02:03:04", "1-02:03:04"),
        (-3, "0:00", "00:00:00"),
        (None, "N/A", "N/A"),
    ],
)
def test_a_duration_is_a_clock(seconds: float | None, text: str, long: str) -> None:
    assert (clock(seconds), clock(seconds, always_hours=True)) == (text, long)


@pytest.mark.parametrize(
    ("text", "before"),
    [
        ("now", timedelta()),
        ("now-2hours", timedelta(hours=2)),
        ("now-30", timedelta(seconds=30)),
        ("now+1day", timedelta(days=-1)),
    ],
)
def test_a_time_may_be_relative(text: str, before: timedelta) -> None:
    assert parse_when(text, NOW) == NOW - before


@pytest.mark.parametrize(
    ("text", "local"),
    [
        ("2026-03-04", "2026-03-04T00:00:00"),
        ("2026-03-04T05:06:07", "2026-03-04T05:06:07"),
        ("03/04/26", "2026-03-04T00:00:00"),
        ("03/04-05:06", "2026-03-04T05:06:00"),
        ("2025-12-31t01:00", "2025-12-31T01:00:00"),
    ],
)
def test_a_time_is_read_as_local_time(text: str, local: str) -> None:
    assert instant(parse_when(text, NOW)) == local


def test_a_day_has_words() -> None:
    assert instant(parse_when("today", NOW)).endswith("T00:00:00")
    assert instant(parse_when("noon", NOW)).endswith("T12:00:00")
    assert instant(parse_when("05:06", NOW)).endswith("T05:06:00")
    assert instant(None) == "N/A" and instant(None, "Unknown") == "Unknown"


@pytest.mark.parametrize("text", ["soon", "25:00", "2026-02-30", "now-2moons", "13/13/26"])
def test_a_time_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="is not valid: use 2026-12-24"):
        parse_when(text, NOW)
