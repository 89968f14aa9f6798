"""When a request is sent to a second replica: the percentile of the model's answers, and a twin."""

from hypothesis import given, settings
from hypothesis import strategies as st

from services.api_gateway.serving.hedging import (
    AFTER_MIN_NS,
    EVERY,
    EXPECTED_FACTOR,
    MS_NS,
    SAMPLES_MAX,
    SAMPLES_MIN,
    Hedging,
)

S = 1_000 * MS_NS


def learnt(took_ns: int, count: int = SAMPLES_MIN) -> Hedging:
    hedging = Hedging()
    for _ in range(count):
        hedging.began(True, took_ns)
    return hedging


def test_nothing_is_hedged_before_enough_answers_came() -> None:
    assert learnt(S, SAMPLES_MIN - 1).after_ns(True, 0) is None
    assert learnt(S).after_ns(True, 0) == S


def test_streams_and_other_answers_are_learnt_apart() -> None:
    hedging = learnt(S)
    assert hedging.after_ns(False, 0) is None
    for _ in range(SAMPLES_MIN):
        hedging.began(False, 9 * S)
    assert (hedging.after_ns(True, 0), hedging.after_ns(False, 0)) == (S, 9 * S)


def test_a_prompt_that_needs_long_is_not_slow() -> None:
    assert learnt(S).after_ns(True, 5 * S) == EXPECTED_FACTOR * 5 * S


def test_a_fast_model_is_not_hedged_at_once() -> None:
    assert learnt(MS_NS).after_ns(True, 0) == AFTER_MIN_NS


@settings(deadline=None)
@given(st.lists(st.integers(0, 10 * S), min_size=SAMPLES_MIN, max_size=2 * SAMPLES_MAX))
def test_the_time_is_that_of_a_twin_that_sorts_all_answers(times: list[int]) -> None:
    hedging = Hedging()
    for took_ns in times:
        hedging.began(True, took_ns)
    seen = times[: len(times) // EVERY * EVERY][-SAMPLES_MAX:]
    faster = sum(each <= (found := hedging.after_ns(True, 0) or 0) for each in seen)
    late = sum(each > found for each in seen)
    assert found == max(AFTER_MIN_NS, sorted(seen)[len(seen) * 95 // 100])
    assert faster + late == len(seen) and (found == AFTER_MIN_NS or late <= len(seen) // 20)
