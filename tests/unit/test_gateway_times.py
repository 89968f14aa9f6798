"""How the gateway reads durations and instants, and writes times."""

import pytest

from libs.common.errors import Refused
from services.api_gateway.times import duration_s, instant_ns, rfc3339

NOW_NS = 1_767_225_600_123_000_000


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (90, 90),
        ("90", 90),
        ("45s", 45),
        ("2d", 172_800),
        ("1h30m", 5_400),
        ("01:02:03", 3_723),
        ("1-02:03:04", 93_784),
        ("0", 0),
    ],
)
def test_a_duration_is_read_in_every_accepted_form(text: object, seconds: int) -> None:
    assert duration_s(text, "x") == seconds


@pytest.mark.parametrize(
    "text", ["", "h", "1h1h", "-5", "1.5h", "1:99", "²", "9" * 40, None, 1.5, True, "00:61:00"]
)
def test_invalid_duration_is_refused_with_its_name(text: object) -> None:
    with pytest.raises(Refused, match="limit"):
        duration_s(text, "limit")


@pytest.mark.parametrize(
    ("text", "at_ns"),
    [
        ("", 0),
        ("1h", NOW_NS - 3_600_000_000_000),
        ("2026-01-01T00:00:00Z", 1_767_225_600_000_000_000),
        ("2026-01-01T01:00:00+01:00", 1_767_225_600_000_000_000),
    ],
)
def test_an_instant_is_a_time_or_how_long_ago(text: str, at_ns: int) -> None:
    assert instant_ns(text, "since", NOW_NS) == at_ns


def test_invalid_time_is_refused_with_its_name() -> None:
    with pytest.raises(Refused, match="since"):
        instant_ns("yesterday", "since", NOW_NS)


def test_a_time_that_has_not_come_is_null() -> None:
    assert (rfc3339(0), rfc3339(NOW_NS)) == (None, "2026-01-01T00:00:00.123Z")
