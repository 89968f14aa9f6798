"""Clock offsets: exchanges with known delays, clocks that drift, and clocks that are stepped."""

from libs.common.traces.clock_offset import (
    ClockOffset,
    ClockPoint,
    Exchange,
    error_of,
    offset_of,
    point_of,
    shift_at,
)

MS = 1_000_000


def exchange(at: int, offset: int, there: int, back: int, spent: int = 0) -> Exchange:
    received = at + there + offset
    return Exchange(at, received, received + spent, at + there + spent + back)


def test_an_even_round_trip_gives_the_offset() -> None:
    found = offset_of([exchange(1_000, 5 * MS, there=200, back=200, spent=50)])
    assert found == ClockOffset(5 * MS, 200, 1_225)


def test_exchanges_together_are_better_than_the_best_alone() -> None:
    slow_back = exchange(0, -7 * MS, there=100, back=900)
    slow_there = exchange(5_000, -7 * MS, there=900, back=100)
    found = offset_of([slow_back, slow_there])
    assert (found.offset_ns, found.error_ns) == (-7 * MS, 100)


def test_after_a_step_of_the_clock_the_shortest_round_trip_counts() -> None:
    found = offset_of([exchange(0, 0, 50, 50), exchange(1_000, 9 * MS, 10, 10)])
    assert (found.offset_ns, found.error_ns) == (9 * MS, 10)


def test_the_askers_own_clock_cancels_out() -> None:
    reference, node = ClockOffset(1_000, 20, 5_000), ClockOffset(4_000, 30, 5_000)
    assert point_of(node, reference) == ClockPoint(9_000, -3_000, 50)
    assert point_of(reference, reference) == ClockPoint(6_000, 0, 0)


def test_a_drift_between_two_measurements_is_removed_on_a_line() -> None:
    before, after = ClockPoint(1_000, 100, 7), ClockPoint(2_000, 300, 5)
    shifts = [shift_at(at, before, after) for at in (1_000, 1_500, 2_000, 2_500)]
    assert shifts == [100, 200, 300, 400]
    assert error_of(before, after) == 7


def test_one_measurement_alone_is_a_constant() -> None:
    point = ClockPoint(1_000, 100)
    assert shift_at(9_999, point, point) == 100
