"""Fairness against a twin that recomputes everything, and the bound of the VTC theorem."""

from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from services.api_gateway.serving.fairness import SCALE, Fairness, Flow

TENANTS = ("a", "b", "c")
TOKENS_MAX = 500


class Step(NamedTuple):
    """A request of a tenant arrives, or a turn is given and costs so many tokens."""

    arrives: bool
    tenant: str
    band: int
    tokens: int


STEPS = st.lists(
    st.builds(
        Step,
        st.booleans(),
        st.sampled_from(TENANTS),
        st.integers(0, 1),
        st.integers(1, TOKENS_MAX),
    ),
    max_size=80,
)


class Naive:
    """The rules, written down without care for speed."""

    def __init__(self) -> None:
        self.queue: list[Flow] = []
        self.counters: dict[Flow, int] = {}
        self.levels = {0: 0, 1: 0}

    def arrive(self, flow: Flow) -> None:
        if flow not in self.queue:
            active = [self.counters[each] for each in self.queue if each.band == flow.band]
            floor = min(active) if active else self.levels[flow.band]
            self.counters[flow] = max(self.counters.get(flow, 0), floor)
        self.queue.append(flow)

    def turn(self, tokens: int) -> Flow | None:
        if not self.queue:
            return None
        band = min(each.band for each in self.queue)
        waiting = sorted({each for each in self.queue if each.band == band})
        chosen = min(waiting, key=lambda each: (self.counters[each], each.tenant))
        self.levels[band] = max(self.levels[band], self.counters[chosen])
        self.queue.remove(chosen)
        self.counters[chosen] += tokens * SCALE
        return chosen


@settings(deadline=None)
@given(STEPS)
def test_the_choices_are_those_of_a_naive_twin(steps: list[Step]) -> None:
    fair, naive = Fairness(), Naive()
    for step in steps:
        flow = Flow(step.band, step.tenant)
        if step.arrives:
            fair.arrive(flow, 1, 0)
            naive.arrive(flow)
            continue
        chosen = fair.choose(0)
        assert chosen == naive.turn(step.tokens)
        if chosen is not None:
            fair.take(chosen, 0)
            fair.charge(chosen, step.tokens, 0, 0)
            assert fair.counter(chosen) == naive.counters[chosen]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, TOKENS_MAX), st.booleans()), min_size=1, max_size=300),
    st.sampled_from((1, 2, 5)),
)
def test_two_waiting_tenants_never_differ_by_more_than_two_requests(
    turns: list[tuple[int, bool]], weight: int
) -> None:
    """Both always wait; a third tenant comes and goes."""
    fair = Fairness()
    a, b, guest = Flow(0, "a"), Flow(0, "b"), Flow(0, "guest")
    for _ in range(len(turns) + 1):
        fair.arrive(a, weight, 0)
        fair.arrive(b, 1, 0)
    got = {a: 0.0, b: 0.0, guest: 0.0}
    for tokens, guest_comes in turns:
        if guest_comes:
            fair.arrive(guest, 1, 0)
        flow = fair.choose(0)
        assert flow is not None
        fair.take(flow, 0)
        fair.charge(flow, tokens, 0, 0)
        got[flow] += tokens / (weight if flow == a else 1)
        assert abs(got[a] - got[b]) <= 2 * TOKENS_MAX
