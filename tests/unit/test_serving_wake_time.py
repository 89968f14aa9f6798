"""How long a model takes to wake, and a twin of what is left."""

from hypothesis import given, settings
from hypothesis import strategies as st

from services.api_gateway.serving.wake_time import OVERDUE_PART, SECOND_NS, WAKES_MAX, WakeTime

S = SECOND_NS


def woken(*took_s: int) -> WakeTime:
    times = WakeTime()
    for seconds in took_s:
        times.begin(0)
        times.woken(seconds * S)
    return times


def test_nothing_is_expected_before_the_first_wake() -> None:
    times = WakeTime()
    times.begin(0)
    assert times.left_ns(5 * S) is None and times.left_s(5 * S) is None


def test_what_is_left_falls_while_the_model_wakes() -> None:
    times = woken(12)
    assert times.left_s(0) == 12, "before a wake it is all of it"
    times.begin(100 * S)
    assert [times.left_s((100 + waited) * S) for waited in (0, 2, 11)] == [12, 10, 1]


def test_an_overdue_wake_takes_longer_and_never_no_time() -> None:
    times = woken(12)
    times.begin(0)
    assert times.left_s(12 * S) == 12 // OVERDUE_PART
    assert times.left_s(40 * S) == 40 // OVERDUE_PART
    assert woken(0).left_ns(0) == 1


def test_one_slow_wake_does_not_count_for_long() -> None:
    assert woken(10, 10, 10, 10, 500).left_s(0) == 10
    assert woken(*(99,) * WAKES_MAX, *(10,) * WAKES_MAX).left_s(0) == 10


def test_a_wake_that_nobody_waits_for_is_not_measured() -> None:
    times = woken(10)
    times.begin(0)
    times.forget()
    times.woken(900 * S)
    assert times.left_s(0) == 10


@settings(deadline=None)
@given(st.lists(st.integers(0, 1_000), min_size=1, max_size=20), st.integers(0, 2_000))
def test_what_is_left_is_that_of_a_twin(took_s: list[int], waited_s: int) -> None:
    times = woken(*took_s)
    times.begin(0)
    recent = took_s[-WAKES_MAX:]
    shorter = [
        each for each in recent if sum(other <= each for other in recent) * 4 > 3 * len(recent)
    ]
    expected_s = min(shorter, default=max(recent))
    overdue_ns = max(1, waited_s * S // OVERDUE_PART)
    left_ns = (expected_s - waited_s) * S
    assert times.left_ns(waited_s * S) == (left_ns if left_ns > 0 else overdue_ns)
