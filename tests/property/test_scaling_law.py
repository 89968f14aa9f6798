"""The autoscaling law under any signals: its bounds hold, and its formula is that of the page."""

from fractions import Fraction
from math import ceil, floor

from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.models.autoscaling import SECOND_NS, Autoscaling, Signals, Targets

TARGETS = Targets(least=1, most=40, first_token_ns=1_000)
SAMPLE = st.tuples(st.integers(0, 4_000), st.integers(0, 500_000), st.integers(1, 120))


@settings(deadline=None)
@given(st.lists(SAMPLE, min_size=1, max_size=60), st.integers(1, 40))
def test_bounds_hold_under_any_signals(samples: list[tuple[int, int, int]], count: int) -> None:
    """Replicas become ready at once; the law is followed."""
    law, now_s = Autoscaling(TARGETS), 0
    history = [(-10_000, count)]
    shrunk_s = -10_000
    for first_token_ns, waiting, later_s in samples:
        now_s += later_s
        history.append((now_s, count))
        signals = Signals(count, count, first_token_ns, 0, waiting, 1, 1_000)
        found = law.decide(signals, now_s * SECOND_NS)
        assert 1 <= found.replicas <= 40
        recent = [each for when, each in history if now_s - when <= 60]
        assert found.replicas <= max(count, min(recent) + max(min(recent), 4))
        if found.replicas < count:
            assert found.replicas == count - 1
            assert now_s - shrunk_s >= 120
            shrunk_s = now_s
        count = found.replicas


@settings(deadline=None)
@given(st.integers(1, 60), st.integers(0, 60), st.integers(0, 3_000))
def test_the_law_is_the_published_formula(count: int, ready: int, first_token_ns: int) -> None:
    ready = min(ready, count)
    signals = Signals(count, ready, first_token_ns, 0, 0, 1, 1_000)
    found = Autoscaling(TARGETS).decide(signals, 0)
    s = min(Fraction(2), Fraction(first_token_ns, 1_000))
    grow, shrink = Fraction(55, 100), Fraction(40, 100)
    if s > grow:
        want = count + max(0, ceil(count * (s * ready / count / grow - 1)))
    elif s < shrink:
        want = max(1, count - floor(count * (1 - s / shrink)))
    else:
        want = count
    assert found.by_pressure == want
