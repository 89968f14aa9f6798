"""Quantities as people write them: a number with its noun, a size, a month of UTC as a number.

Pure: an instant comes in as an argument, no clock is read. Tests: tests/unit/test_quantities.py.
"""

import re
from datetime import UTC, datetime
from typing import Final

# The forms of a size, for errors.
SIZES: Final = 'write bytes, or for example "512MiB" or "40GiB"'

_SIZE: Final = re.compile(r"(\d{1,9}(?:\.\d{1,3})?) ?([KMGT])(i?)B?", re.IGNORECASE)


def counted(number: int, noun: str) -> str:
    """Return the number with its noun: `1 GPU`, `2 GPUs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def month_of(wall_ns: int) -> int:
    """Return the month of an instant (nanoseconds since 1970) as a number that grows: 202611."""
    instant = datetime.fromtimestamp(wall_ns // 1_000_000_000, UTC)
    return instant.year * 100 + instant.month


def bytes_of(text: str) -> int:
    """Return the bytes of a size; "40GiB" and "40G" are 40 * 2^30, "40GB" is 40 * 10^9.

    Raises ValueError with the accepted forms.
    """
    if found := _SIZE.fullmatch(text.strip()):
        number, unit, binary = found.groups()
        decimal = text.strip().upper().endswith("B") and not binary
        step = 1_000 if decimal else 1_024
        return int(float(number) * step ** ("KMGT".index(unit.upper()) + 1))
    if text.isascii() and text.isdigit() and len(text) <= 18:
        return int(text)
    raise ValueError(f"{text!r} is not a size: {SIZES}")
