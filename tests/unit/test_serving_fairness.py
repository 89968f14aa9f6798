"""Fairness: whose request goes next."""

from collections import Counter

import pytest

from services.api_gateway.serving import fairness
from services.api_gateway.serving.fairness import SCALE, SECOND_NS, Fairness, Flow, jain

A, B, C = Flow(0, "a"), Flow(0, "b"), Flow(0, "c")
LOW = Flow(1, "a")


def serve(fair: Fairness, turns: int, tokens: int = 100, now_ns: int = 0) -> list[Flow]:
    """Serve waiting requests and return their flows."""
    served = []
    for _ in range(turns):
        flow = fair.choose(now_ns)
        assert flow is not None
        fair.take(flow, now_ns)
        fair.charge(flow, tokens, 0, now_ns)
        served.append(flow)
    return served


def arrive(fair: Fairness, flow: Flow, count: int = 1, weight: int = 1, now_ns: int = 0) -> None:
    for _ in range(count):
        fair.arrive(flow, weight, now_ns)


def test_nothing_waits_and_nothing_is_chosen() -> None:
    fair = Fairness()
    assert fair.choose(0) is None
    assert fair.counter(A) == 0


def test_the_tenant_that_used_least_goes_next() -> None:
    fair = Fairness()
    arrive(fair, A, 3)
    arrive(fair, B, 3)
    assert serve(fair, 6) == [A, B, A, B, A, B]


def test_tenants_get_tokens_by_weight() -> None:
    fair = Fairness()
    arrive(fair, A, 100, weight=3)
    arrive(fair, B, 100, weight=1)
    assert Counter(serve(fair, 80)) == {A: 60, B: 20}


def test_output_tokens_cost_twice_as_much_as_input_tokens() -> None:
    fair = Fairness()
    fair.charge(A, 10, 5, 0)
    assert fair.counter(A) == 20 * SCALE
    fair.charge(A, -10, 0, 0)
    assert fair.counter(A) == 10 * SCALE


def test_an_idle_tenant_is_lifted_and_saves_up_no_turns() -> None:
    fair = Fairness()
    arrive(fair, A, 100)
    serve(fair, 50)
    arrive(fair, B, 50)
    assert Counter(serve(fair, 10)) == {A: 5, B: 5}


def test_the_lift_holds_when_nothing_waited_in_between() -> None:
    fair = Fairness()
    arrive(fair, A, 10)
    serve(fair, 10)
    arrive(fair, B)
    assert fair.counter(B) == 9 * 100 * SCALE


def test_a_tenant_that_owes_is_not_forgiven_by_a_pause() -> None:
    fair = Fairness()
    arrive(fair, A, 2)
    arrive(fair, B, 4)
    serve(fair, 2)
    fair.charge(A, 1_000, 0, 0)
    assert serve(fair, 3) == [B, B, B]


def test_a_lower_band_waits_while_a_higher_one_has_requests() -> None:
    fair = Fairness()
    arrive(fair, LOW)
    arrive(fair, A, 2)
    assert serve(fair, 3) == [A, A, LOW]


def test_a_starving_band_gets_its_oldest_request_served() -> None:
    fair = Fairness()
    arrive(fair, Flow(1, "late"), now_ns=1)
    arrive(fair, LOW, 3)
    arrive(fair, A, 100)
    minute = fairness.STARVED_NS
    assert serve(fair, 5, now_ns=minute - 1) == [A] * 5
    assert serve(fair, 3, now_ns=minute) == [LOW, A, A]
    assert serve(fair, 1, now_ns=minute + 1) == [A], "it has 5 % of the tokens now"


def test_a_band_starves_by_what_was_served_of_late() -> None:
    fair = Fairness()
    arrive(fair, LOW, 2)
    arrive(fair, A, 200)
    fair.charge(LOW, 10_000, 0, 0)
    assert serve(fair, 2, now_ns=60 * SECOND_NS) == [A, A]
    assert serve(fair, 2, now_ns=61 * SECOND_NS) == [LOW, A]


def test_within_the_slack_the_better_match_goes_first() -> None:
    fair = Fairness(slack=150)
    arrive(fair, A, 5)
    arrive(fair, B, 5)
    served = []
    for _ in range(4):
        flow = fair.choose(0, lambda flow: int(flow == B))
        assert flow is not None
        fair.take(flow, 0)
        fair.charge(flow, 100, 0, 0)
        served.append(flow)
    assert served == [B, B, A, B]


def test_a_request_that_gives_up_leaves_the_others_in_order() -> None:
    fair = Fairness()
    for when in (1, 2, 3):
        fair.arrive(A, 1, when)
    fair.take(A, 4, arrived_ns=2)
    assert serve(fair, 2) == [A, A]
    assert fair.choose(0) is None
    fair.arrive(A, 1, 5)
    fair.take(A, 6, arrived_ns=5)
    assert fair.choose(0) is None


def test_a_skipped_flow_gives_its_turn_to_the_next_one() -> None:
    fair = Fairness()
    fair.arrive(A, 1, 7)
    arrive(fair, B)
    arrive(fair, LOW)
    assert fair.choose(0) == A
    assert fair.arrived_ns(A) == 7
    assert fair.choose(0, skipped=[A]) == B
    assert fair.choose(0, skipped=[A, B]) == LOW
    assert fair.choose(0, skipped=[A, B, LOW]) is None


def test_a_weight_below_one_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="weight"):
        Fairness().arrive(A, 0, 0)


def test_counters_of_idle_tenants_are_bounded() -> None:
    fair = Fairness()
    fair.charge(Flow(0, "owes"), 1_000_000, 0, 0)
    for number in range(3 * fairness.IDLE_MAX):
        flow = Flow(0, f"t{number}")
        fair.arrive(flow, 1, 0)
        fair.take(flow, 0)
    assert len(fair._bands[0].counters) <= fairness.IDLE_MAX + 1
    assert fair.counter(Flow(0, "owes")) == 1_000_000 * SCALE


def test_jain_is_one_for_equal_shares_and_a_part_for_one_owner() -> None:
    assert jain([3, 3, 3]) == pytest.approx(1.0)
    assert jain([1, 0, 0, 0]) == pytest.approx(0.25)
    assert jain([]) == pytest.approx(1.0)


def test_a_request_that_is_put_back_is_its_flow_s_first_one() -> None:
    fair = Fairness()
    arrive(fair, A, now_ns=5)
    fair.put_back(A, 1, 3)
    assert fair.arrived_ns(A) == 3
    fair.take(A, 6)
    assert fair.arrived_ns(A) == 5


def test_a_large_weight_makes_no_token_free() -> None:
    fair = Fairness()
    arrive(fair, A, weight=1_000_000)
    fair.charge(A, 1, 0, 0)
    assert fair.counter(A) == 1
