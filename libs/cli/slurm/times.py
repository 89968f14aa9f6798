"""Slurm's forms of durations and instants.

Tests: tests/unit/test_slurm_times.py.
"""

import re
from datetime import datetime, timedelta
from typing import Final

from libs.common.errors import Refused

NOT_KNOWN: Final = "N/A"
UNKNOWN: Final = "Unknown"
UNLIMITED: Final = "UNLIMITED"
EXPECTED: Final = (
    "use 2026-12-24, 2026-12-24T18:00:00, 12/24/26, 18:00, today, midnight, noon, now or now-2days"
)
UNITS_S: Final = {
    "second": 1, "minute": 60, "hour": 3_600, "day": 86_400, "week": 604_800,
}  # fmt: skip

_NOW: Final = re.compile(r"now(?:([-+])([0-9]{1,9})(second|minute|hour|day|week)?s?)?")
_CLOCK: Final = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?")
_AMERICAN: Final = re.compile(r"([0-9]{1,2})[/.]([0-9]{1,2})(?:[/.]([0-9]{2}))?(?:-(.+))?")


def clock(seconds: float | None, always_hours: bool = False) -> str:
    """Return a duration: `1:05`, `1:02:03`, `1-02:03:04`; sacct always writes the hours."""
    if seconds is None:
        return NOT_KNOWN
    whole = max(0, int(seconds))
    days, rest = divmod(whole, 86_400)
    hours, minutes, left = rest // 3_600, rest % 3_600 // 60, rest % 60
    if days:
        return f"{days}-{hours:02}:{minutes:02}:{left:02}"
    if always_hours:
        return f"{hours:02}:{minutes:02}:{left:02}"
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


def instant(at: datetime | None, otherwise: str = NOT_KNOWN) -> str:
    """Return an instant in local time: `2026-12-24T18:00:00`."""
    return f"{at.astimezone():%Y-%m-%dT%H:%M:%S}" if at else otherwise


def parse_when(text: str, now: datetime) -> datetime:
    """Return the instant that -S or -E names, in local time. Raises Refused."""
    try:
        return _when(text.lower(), now.astimezone())
    except (ValueError, OverflowError):
        raise Refused(f"the time {text!r} is not valid: {EXPECTED}") from None


def _when(text: str, now: datetime) -> datetime:
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if found := _NOW.fullmatch(text):
        seconds = int(found[2] or 0) * UNITS_S[found[3] or "second"]
        return now - timedelta(seconds=seconds if found[1] == "-" else -seconds)
    named = {"today": 0, "midnight": 0, "noon": 12, "fika": 15, "teatime": 16}
    if text in named:
        return midnight.replace(hour=named[text])
    if clock_found := _CLOCK.fullmatch(text):
        hour, minute, second = (int(each or 0) for each in clock_found.groups())
        return midnight.replace(hour=hour, minute=minute, second=second)
    if american := _AMERICAN.fullmatch(text):
        year = 2000 + int(american[3]) if american[3] else now.year
        day = midnight.replace(year=year, month=int(american[1]), day=int(american[2]))
        return _when(american[4], day) if american[4] else day
    return datetime.fromisoformat(text.upper()).astimezone(now.tzinfo)
