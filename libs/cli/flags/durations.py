"""Lengths of time as people write and read them: `90`, `1h30m`, `1-12:00:00`; `3m ago`, `1h02m`.

Pure but for `age`, which is told what time it is. Whole seconds. Tests:
tests/unit/test_cli_durations.py.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

UNITS_S: Final = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
EXPECTED: Final = "a duration such as 90, 90s, 1h30m, 12:00:00 or 1-12:00:00"

_PARTS = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?")
_CLOCK = re.compile(r"(?:(\d+)-)?(\d+):([0-5]?\d)(?::([0-5]?\d))?")


def parse_duration(text: str) -> int:
    """Seconds.

    Raises ValueError saying what is expected. `1:30` is an hour and a half when days are named,
    else 1 min 30 s.
    """
    text = text.strip().lower()
    if match := _CLOCK.fullmatch(text):
        return _clock(match)
    if text and (match := _PARTS.fullmatch(text)):
        return sum(
            int(count) * unit
            for count, unit in zip(match.groups("0"), UNITS_S.values(), strict=True)
        )
    raise ValueError(f"{text!r} is not {EXPECTED}")


def _clock(match: re.Match[str]) -> int:
    days, first, second, third = match.groups()
    if third is not None:
        hours, minutes, seconds = int(first), int(second), int(third)
    elif days is not None:
        hours, minutes, seconds = int(first), int(second), 0
    else:
        hours, minutes, seconds = 0, int(first), int(second)
    return int(days or 0) * 86_400 + hours * 3_600 + minutes * 60 + seconds


def show_duration(seconds: float) -> str:
    """The two largest units that matter: `42s`, `12m04s`, `1h02m`, `3d04h`."""
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
    """How long ago, in one unit: `now`, `42s ago`, `3m ago`, `5h ago`, `2d ago`."""
    whole = int(seconds)
    if whole < 1:
        return "now"
    for unit, size in UNITS_S.items():
        if whole >= size:
            return f"{whole // size}{unit} ago"
    return "now"


def parse_instant(text: str | None) -> datetime | None:
    """An RFC 3339 instant; None for null and for what is none."""
    try:
        instant = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)


def age(text: str | None, now: datetime) -> str:
    """`3m ago`, or `-` where there is no instant."""
    instant = parse_instant(text)
    return show_age((now - instant).total_seconds()) if instant else "-"


def between(start: str | None, end: str | None, now: datetime) -> str:
    """How long from `start` to `end` (to `now` while there is no end), or `-` where it has not
    begun.
    """
    begin, finish = parse_instant(start), parse_instant(end) or now
    return show_duration((finish - begin).total_seconds()) if begin else "-"


def instant_option(text: str | None, now: datetime) -> str | None:
    """`10m` (so long ago) or an instant, as the gateway takes it. Raises ValueError."""
    if not text:
        return None
    if instant := parse_instant(text):
        return instant.isoformat()
    try:
        return (now - timedelta(seconds=parse_duration(text))).isoformat()
    except ValueError:
        raise ValueError(
            f"{text!r} is neither {EXPECTED} (so long ago) nor an instant such as "
            "2025-01-31T12:00:00Z"
        ) from None
