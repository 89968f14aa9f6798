"""Clock offsets between nodes, from round trips of messages, with a bound on their error. Pure.

A gateway asks all nodes of a job at about the same time. Each exchange says between which bounds
the node's clock is ahead of the gateway's: it cannot have answered before it was asked, nor later
than the answer came. The intersection of the bounds of several exchanges is the result. The
gateway's own clock cancels out, because only differences between nodes are used.
Tests: tests/unit/test_clock_offset.py, tests/property/test_clock_bounds.py.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec


class Exchange(NamedTuple):
    """The four times of one round trip, in nanoseconds on the wall clocks.

    `sent_ns` and `returned_ns` are on the asker's clock, the others on the node's.
    """

    sent_ns: int
    received_ns: int
    answered_ns: int
    returned_ns: int

    @property
    def round_trip_ns(self) -> int:
        """The time that the two messages travelled."""
        return (self.returned_ns - self.sent_ns) - (self.answered_ns - self.received_ns)


class ClockOffset(msgspec.Struct, frozen=True, array_like=True):
    """The time by which a node's clock is ahead of the asker's, and the largest error of that.

    `at_ns` is the moment of the measurement on the asker's clock.
    """

    offset_ns: int
    error_ns: int
    at_ns: int


class ClockPoint(msgspec.Struct, frozen=True, array_like=True):
    """The time to add to a node's clock to get the reference clock, at one moment of that clock.

    `error_ns` is the largest error.
    """

    at_ns: int
    shift_ns: int
    error_ns: int = 0


def offset_of(exchanges: Sequence[Exchange]) -> ClockOffset:
    """Return the offset that the exchanges agree on.

    If a clock was stepped meanwhile, they do not agree: then the shortest round trip counts.
    """
    shortest = min(exchanges, key=lambda exchange: exchange.round_trip_ns)
    counted = exchanges if _agree(exchanges) else (shortest,)
    low, high = _bounds(counted)
    return ClockOffset(
        offset_ns=(low + high) // 2,
        error_ns=(high - low + 1) // 2,
        at_ns=(shortest.sent_ns + shortest.returned_ns) // 2,
    )


def point_of(node: ClockOffset, reference: ClockOffset) -> ClockPoint:
    """Return what to add to the node's clock for the reference node's clock.

    The errors of both measurements add up; the reference node itself has none.
    """
    if node is reference:
        return ClockPoint(node.at_ns + node.offset_ns, 0)
    return ClockPoint(
        at_ns=node.at_ns + node.offset_ns,
        shift_ns=reference.offset_ns - node.offset_ns,
        error_ns=node.error_ns + reference.error_ns,
    )


def shift_at(local_ns: int, before: ClockPoint, after: ClockPoint) -> int:
    """Return what to add to the node's clock at `local_ns`, on the line through two points.

    Clocks drift apart evenly over the seconds of a trace, so the line removes the drift.
    """
    span_ns = after.at_ns - before.at_ns
    if span_ns <= 0:
        return before.shift_ns
    gained_ns = after.shift_ns - before.shift_ns
    return before.shift_ns + gained_ns * (local_ns - before.at_ns) // span_ns


def error_of(before: ClockPoint, after: ClockPoint) -> int:
    """Return the largest error of `shift_at` between the two points."""
    return max(before.error_ns, after.error_ns)


def _bounds(exchanges: Sequence[Exchange]) -> tuple[int, int]:
    """Return the least and the largest offset that no exchange contradicts."""
    low = max(exchange.answered_ns - exchange.returned_ns for exchange in exchanges)
    high = min(exchange.received_ns - exchange.sent_ns for exchange in exchanges)
    return low, high


def _agree(exchanges: Sequence[Exchange]) -> bool:
    low, high = _bounds(exchanges)
    return low <= high
