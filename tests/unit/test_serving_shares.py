"""Shares: what flows got in the last minute, and how equal it is."""

from services.api_gateway.serving.fairness import Flow
from services.api_gateway.serving.shares import WINDOW_NS, Shares

A, B, LOW = Flow(0, "a"), Flow(0, "b"), Flow(1, "a")
S = 1_000_000_000


def test_tokens_of_the_last_minute_are_added_up_and_older_ones_are_dropped() -> None:
    shares = Shares()
    shares.charge(A, 100)
    shares.refresh({}, 0)
    shares.charge(A, 20)
    shares.charge(B, 7)
    shares.charge(LOW, -3)
    assert shares.tokens() == {A: 120, B: 7, LOW: 0}
    shares.refresh({}, WINDOW_NS)
    assert shares.tokens() == {A: 20, B: 7, LOW: 0}
    shares.refresh({}, 2 * WINDOW_NS)
    assert shares.tokens() == {}


def test_equal_parts_for_each_unit_of_weight_are_fair() -> None:
    shares = Shares()
    shares.refresh({A: 300, B: 100}, 0)
    shares.charge(A, 600)
    shares.charge(B, 200)
    assert shares.jain(0) == 1.0, "the span has not ended"
    shares.refresh({A: 300, B: 100}, 2 * S)
    assert shares.jain(0) == 1.0
    shares.charge(A, 600)
    shares.refresh({A: 300, B: 100}, 4 * S)
    assert 0.5 < shares.jain(0) < 1.0


def test_a_tenant_that_did_not_wait_all_the_time_is_not_compared() -> None:
    shares = Shares()
    shares.refresh({A: 1}, 0)
    shares.charge(A, 600)
    shares.charge(B, 1)
    shares.refresh({A: 1, B: 1}, 2 * S)
    assert shares.jain(0) == 1.0


def test_bands_are_not_compared_with_each_other() -> None:
    shares = Shares()
    shares.refresh({A: 1, LOW: 1}, 0)
    shares.charge(A, 600)
    shares.refresh({A: 1, LOW: 1}, 2 * S)
    assert (shares.jain(0), shares.jain(1)) == (1.0, 1.0)
