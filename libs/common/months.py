"""Months of UTC as numbers that grow: 202611. Pure: an instant comes in, and no clock is read."""

from datetime import UTC, datetime


def month_of(wall_ns: int) -> int:
    """The month of an instant (nanoseconds since 1970)."""
    instant = datetime.fromtimestamp(wall_ns // 1_000_000_000, UTC)
    return instant.year * 100 + instant.month
