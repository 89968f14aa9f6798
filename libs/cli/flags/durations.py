"""Durations and ages as the command line reads and shows them: `3m ago`, `1h02m`.

`libs/common/durations.py` holds the grammar. Pure: callers pass the current time. Tests:
tests/unit/test_cli_durations.py.
"""

from datetime import UTC, datetime, timedelta
from typing import Final

import click

from libs.common.durations import EXPECTED, parse_duration

UNITS_S: Final = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}


class Duration(click.ParamType[int]):
    """An option value that is a duration, in seconds."""

    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        try:
            return value if isinstance(value, int) else parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


DURATION: Final = Duration()


def show_duration(seconds: float) -> str:
    """Return the two largest units that matter: `42s`, `12m04s`, `1h02m`, `3d04h`."""
    whole = max(0, int(seconds))
    for unit, below, size, part in (
        ("d", "h", 86_400, 3_600),
        ("h", "m", 3_600, 60),
        ("m", "s", 60, 1),
    ):
        if whole >= size:
            return f"{whole // size}{unit}{whole % size // part:02d}{below}"
    return f"{whole}s"


def show_age(seconds: float) -> str:
    """Return an age in one unit: `now`, `42s ago`, `3m ago`, `5h ago`, `2d ago`."""
    whole = int(seconds)
    if whole < 1:
        return "now"
    for unit, size in UNITS_S.items():
        if whole >= size:
            return f"{whole // size}{unit} ago"
    return "now"


def parse_instant(text: str | None) -> datetime | None:
    """Return an RFC 3339 instant, or None if `text` is empty or not an instant."""
    try:
        instant = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)


def age(text: str | None, now: datetime) -> str:
    """Return the age of an instant, `3m ago`, or `-` if there is none."""
    instant = parse_instant(text)
    return show_age((now - instant).total_seconds()) if instant else "-"


def between(start: str | None, end: str | None, now: datetime) -> str:
    """Return the time from `start` to `end`, or to `now` without an `end`.

    `-` if there is no `start`.
    """
    begin, finish = parse_instant(start), parse_instant(end) or now
    return show_duration((finish - begin).total_seconds()) if begin else "-"


def instant_option(text: str | None, now: datetime) -> str | None:
    """Return the instant that `10m` (a time before now) or an RFC 3339 text means.

    Raises ValueError with the accepted forms.
    """
    if not text:
        return None
    if instant := parse_instant(text):
        return instant.isoformat()
    try:
        return (now - timedelta(seconds=parse_duration(text))).isoformat()
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is neither a duration before now ({EXPECTED}) nor an instant such as "
            "2025-01-31T12:00:00Z"
        ) from None
