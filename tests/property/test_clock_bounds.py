"""Clock offsets: the true offset is within the error, whatever the delays are."""

from hypothesis import given
from hypothesis import strategies as st

from libs.common.traces.clock_offset import ClockOffset, Exchange, offset_of, point_of, shift_at

DELAY = st.integers(0, 10_000_000)
OFFSET = st.integers(-(10**15), 10**15)
BURST = st.lists(st.tuples(st.integers(0, 10**9), DELAY, DELAY, DELAY), min_size=1, max_size=16)


def measured(offset: int, burst: list[tuple[int, int, int, int]]) -> ClockOffset:
    return offset_of(
        [
            Exchange(
                at, at + there + offset, at + there + spent + offset, at + there + spent + back
            )
            for at, there, spent, back in burst
        ]
    )


@given(OFFSET, BURST)
def test_the_offset_is_within_the_error(
    offset: int, burst: list[tuple[int, int, int, int]]
) -> None:
    found = measured(offset, burst)
    assert abs(found.offset_ns - offset) <= found.error_ns
    assert found.error_ns <= min((there + back + 1) // 2 for _, there, _, back in burst)


@given(OFFSET, OFFSET, BURST, BURST, st.integers(0, 2 * 10**9))
def test_two_nodes_that_see_one_moment_agree_within_their_errors(
    first: int,
    second: int,
    burst: list[tuple[int, int, int, int]],
    other: list[tuple[int, int, int, int]],
    moment: int,
) -> None:
    reference, node = measured(first, burst), measured(second, other)
    point = point_of(node, reference)
    moved = moment + second + shift_at(moment + second, point, point)
    assert abs(moved - (moment + first)) <= point.error_ns
