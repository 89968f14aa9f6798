"""Times in requests and answers of the gateway.

Pure. `libs/common/durations.py` holds the grammar of durations; a JSON number is whole seconds.
Instants are RFC 3339, or a duration before now. Times of facts are nanoseconds of the writers' wall
clocks; answers show them to the millisecond, in UTC. Tests: tests/unit/test_gateway_times.py.
"""

from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

from libs.common.durations import EXPECTED, parse_duration
from libs.common.errors import Refused

_NS: Final = 1_000_000_000
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
SECONDS_KEPT: Final = 8_192
# The last time that 64 bits hold.
LAST_INSTANT: Final = (1 << 63) - 1


def duration_s(value: object, field: str) -> int:
    """Return a duration in seconds, from a number of seconds or a text.

    Raises Refused with `field`, the value and the accepted forms.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise Refused(f"{field}: {value!r} is not a duration: use {EXPECTED}")
    try:
        return parse_duration(value)
    except ValueError as error:
        raise Refused(f"{field}: {error}") from error


def instant_ns(text: str, field: str, now_ns: int) -> int:
    """Return nanoseconds since 1970 for an instant, or a duration before now; 0 for an empty text.

    Raises Refused with `field`, also for a time before 1970 or after 2262.
    """
    if not text:
        return 0
    try:
        found = moment_ns(text, field)
    except Refused:
        try:
            found = now_ns - duration_s(text, field) * _NS
        except Refused as error:
            raise Refused(
                f'{field}: {text[:64]!r} is not a time: write RFC 3339 ("2026-01-31T12:00:00Z") or '
                'a duration before now ("2h")'
            ) from error
    if not 0 <= found <= LAST_INSTANT:
        raise Refused(f"{field}: {text[:64]!r} is not between the years 1970 and 2262")
    return found


def moment_ns(text: str, field: str) -> int:
    """Return nanoseconds since 1970 for a date and time; 0 for an empty text.

    Raises Refused with `field`.
    """
    try:
        moment = datetime.fromisoformat(text) if text else EPOCH
    except ValueError as error:
        raise Refused(
            f'{field}: {text!r} is not a date and time: write RFC 3339 ("2026-01-31T12:00:00Z")'
        ) from error
    return int(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() * 1_000) * 1_000_000


def rfc3339(at_ns: int) -> str | None:
    """Return the time in UTC to the millisecond, or None for 0, a time that has not come."""
    if not at_ns:
        return None
    return f"{_second_text(at_ns // _NS)}.{at_ns // 1_000_000 % 1_000:03d}Z"


@lru_cache(SECONDS_KEPT)
def _second_text(at_s: int) -> str:
    """Return the second in UTC, from a cache.

    The rows of a list have close times, and formatting one costs as much as the rest of its row.
    """
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%dT%H:%M:%S}"
