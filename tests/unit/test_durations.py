"""The grammar of durations, which the command line and the gateway share."""

import pytest

from libs.cli.flags.durations import DURATION
from libs.common.durations import parse_duration
from libs.common.errors import Refused
from services.api_gateway.times import duration_s


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("1h30m", 5_400),
        ("1h30", 3_630),
        ("2d", 172_800),
        ("1d2h3m4s", 93_784),
        ("1H30M", 5_400),
        ("1:30", 90),
        ("12:00:00", 43_200),
        ("2-1:30", 178_200),
        ("1-12:00:00", 129_600),
        ("0", 0),
    ],
)
def test_command_line_and_gateway_read_a_duration_alike(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds
    assert DURATION.convert(text, None, None) == seconds
    assert duration_s(text, "estimate") == seconds


@pytest.mark.parametrize(
    "text", ["", "1h\n", "soon", "h", "-5", "1.5h", "1:99:00", "5x", "1h1h", "²", "9" * 40]
)
def test_an_invalid_duration_is_refused_with_the_value_and_the_accepted_forms(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a duration: use .* 1h30m, 1:30") as error:
        parse_duration(text)
    with pytest.raises(Refused) as refusal:
        duration_s(text, "estimate")
    assert str(refusal.value) == f"estimate: {error.value}"
