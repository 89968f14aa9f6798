"""The one grammar of durations: `90`, `90s`, `1h30m`, `1:30`, `12:00:00`, `1-12:00:00`.

The command line, job files, and the gateway read durations with this parser, so a text means the
same everywhere. Pure. Tests: tests/unit/test_durations.py.
"""

import re
from typing import Final

EXPECTED: Final = (
    "seconds, or a form such as 90s, 1h30m, 1:30 (minutes and seconds), 12:00:00 or 1-12:00:00"
)
# Bounds the work of reading one text.
TEXT_MAX: Final = 32

_UNITS: Final = (86_400, 3_600, 60, 1)
_PARTS: Final = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?", re.ASCII)
_CLOCK: Final = re.compile(r"(?:(\d+)-)?(\d+):([0-5]?\d)(?::([0-5]?\d))?", re.ASCII)


def parse_duration(text: str) -> int:
    """Return the number of seconds that `text` means.

    `1:30` is 1 minute 30 seconds; after days (`2-1:30`) it is 1 hour 30 minutes, as in Slurm.
    Raises ValueError with the accepted forms.
    """
    lower = text.lower()
    if 0 < len(lower) <= TEXT_MAX:
        if match := _CLOCK.fullmatch(lower):
            return _clock_s(*match.groups())
        if match := _PARTS.fullmatch(lower):
            counts = match.groups("0")
            return sum(int(n) * unit_s for n, unit_s in zip(counts, _UNITS, strict=True))
    raise ValueError(f"{text[:TEXT_MAX]!r} is not a duration: use {EXPECTED}")


def _clock_s(days: str | None, first: str, second: str, third: str | None) -> int:
    if third is not None:
        hours, minutes, seconds = int(first), int(second), int(third)
    elif days is not None:
        hours, minutes, seconds = int(first), int(second), 0
    else:
        hours, minutes, seconds = 0, int(first), int(second)
    return int(days or 0) * 86_400 + hours * 3_600 + minutes * 60 + seconds
