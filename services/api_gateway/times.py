"""Durations and times as users write them, and times as the gateway shows them.

Pure. Durations: 90, "90", "1h30m", "45s", "2d", "HH:MM:SS", "D-HH:MM:SS". Times: RFC 3339, or a
duration, which means that long ago. Facts have times in nanoseconds of their writers' wall clocks;
the gateway shows them in UTC to the millisecond. Held by tests/unit/test_gateway_times.py.
"""

import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

from libs.common.errors import Refused

_UNITS: Final = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")
_CLOCK: Final = re.compile(r"(?:(\d+)-)?(\d{1,6}):([0-5]?\d):([0-5]?\d)")
_NS: Final = 1_000_000_000
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# A longer text is not a duration; this also bounds the work of reading one.
TEXT_MAX: Final = 32
SECONDS_KEPT: Final = 8_192


def duration_s(text: object, field: str) -> int:
    """Return a duration in seconds. Raises Refused naming `field` and the accepted forms."""
    if isinstance(text, int) and not isinstance(text, bool):
        return text
    if isinstance(text, str) and 0 < len(text) <= TEXT_MAX:
        if text.isascii() and text.isdigit():
            return int(text)
        for pattern in (_UNITS, _CLOCK):
            found = pattern.fullmatch(text)
            if found:
                days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
                return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    raise Refused(
        f'{field}: {text!r} is not a duration: write whole seconds, "1h30m" or "D-HH:MM:SS"'
    )


def instant_ns(text: str, field: str, now_ns: int) -> int:
    """Return a time, or a time so long ago, in nanoseconds since 1970; 0 for an empty text.

    Raises Refused naming `field`.
    """
    if not text:
        return 0
    try:
        return moment_ns(text, field)
    except Refused:
        try:
            return now_ns - duration_s(text, field) * _NS
        except Refused as error:
            raise Refused(
                f'{field}: {text!r} is not a time: write RFC 3339 ("2026-01-31T12:00:00Z") or '
                'how long ago ("2h")'
            ) from error


def moment_ns(text: str, field: str) -> int:
    """Return a date and time in nanoseconds since 1970; 0 for an empty text.

    Raises Refused naming `field`.
    """
    try:
        moment = datetime.fromisoformat(text) if text else EPOCH
    except ValueError as error:
        raise Refused(
            f'{field}: {text!r} is not a date and time: write RFC 3339 ("2026-01-31T12:00:00Z")'
        ) from error
    return int(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() * 1_000) * 1_000_000


def rfc3339(at_ns: int) -> str | None:
    """Return the time in UTC to the millisecond; None for 0, a time that has not come."""
    if not at_ns:
        return None
    return f"{_second(at_ns // _NS)}.{at_ns // 1_000_000 % 1_000:03d}Z"


@lru_cache(SECONDS_KEPT)
def _second(at_s: int) -> str:
    """Return the time to the second.

    The result is cached: the rows of a list have close times, and formatting one costs as much as
    the rest of a row.
    """
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%dT%H:%M:%S}"
