"""The budget of second tries: a small part of the requests, and a few more that are saved up."""

from hypothesis import given, settings
from hypothesis import strategies as st

from services.api_gateway.serving.retry_budget import FREE_EVERY_NS, SAVED_MAX, RetryBudget


def taken(budget: RetryBudget, now_ns: int = 0, asked: int = 100) -> int:
    return sum(budget.take(now_ns) for _ in range(asked))


def test_a_few_tries_are_saved_up_from_the_beginning() -> None:
    assert taken(RetryBudget(2)) == SAVED_MAX


def test_two_percent_of_the_requests_may_be_tried_again() -> None:
    budget = RetryBudget(2)
    taken(budget)
    got = 0
    for _ in range(1_000):
        budget.request()
        got += budget.take(0)
    assert got == 20


def test_a_model_with_few_requests_gets_one_more_try_in_a_while() -> None:
    budget = RetryBudget(2)
    taken(budget)
    assert not budget.take(FREE_EVERY_NS - 1)
    assert budget.take(FREE_EVERY_NS)
    assert taken(budget, 1_000 * FREE_EVERY_NS) == SAVED_MAX, "no more are saved up"


def test_without_a_percentage_nothing_is_tried_again() -> None:
    budget = RetryBudget(0)
    budget.request()
    assert taken(budget, 10 * FREE_EVERY_NS) == 0


STEPS = st.lists(st.tuples(st.booleans(), st.integers(0, FREE_EVERY_NS // 4)), max_size=400)


@settings(deadline=None)
@given(STEPS, st.integers(1, 50))
def test_no_span_of_time_has_more_tries_than_the_twin_allows(
    steps: list[tuple[bool, int]], percent: int
) -> None:
    """The twin counts, for every span that ends with a try, what the span may have at most."""
    budget, now_ns = RetryBudget(percent), 0
    events: list[tuple[int, bool]] = []
    for is_request, passes_ns in steps:
        now_ns += passes_ns
        if is_request:
            budget.request()
            events.append((now_ns, False))
        elif budget.take(now_ns):
            events.append((now_ns, True))
    for begin in range(len(events)):
        span = events[begin:]
        tries = sum(is_try for _, is_try in span)
        requests = len(span) - tries
        passed_ns = span[-1][0] - (events[begin - 1][0] if begin else 0)
        assert tries <= SAVED_MAX + requests * percent / 100 + passed_ns / FREE_EVERY_NS + 1
