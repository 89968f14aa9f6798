"""Quantities as people write them: a number with its noun, and a month of UTC as a number.

Pure: an instant comes in as an argument, no clock is read.
"""

from datetime import UTC, datetime


def counted(number: int, noun: str) -> str:
    """Return the number with its noun: `1 GPU`, `2 GPUs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def month_of(wall_ns: int) -> int:
    """Return the month of an instant (nanoseconds since 1970) as a number that grows: 202611."""
    instant = datetime.fromtimestamp(wall_ns // 1_000_000_000, UTC)
    return instant.year * 100 + instant.month
