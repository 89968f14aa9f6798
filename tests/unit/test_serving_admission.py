"""Admission: bounded in tokens per tenant and per model, with a computed time to try again."""

from hypothesis import given, settings
from hypothesis import strategies as st

from services.api_gateway.serving import admission
from services.api_gateway.serving.admission import (
    SECOND_NS,
    Admitted,
    Arrival,
    Bounds,
    Refused,
    Waiting,
    admit,
)

BOUNDS = Bounds(
    tenant_tokens=1_000, model_tokens=4_000, lowest_tokens=2_000, bands=3, wait_ns=60 * SECOND_NS
)
EMPTY = Waiting(of_tenant=0, of_model=0, ahead=0, tokens_per_s=100)


def test_a_request_within_all_bounds_may_wait_for_the_longest_time() -> None:
    assert admit(Arrival(1_000), EMPTY, BOUNDS, 7) == Admitted(7 + 60 * SECOND_NS)


def test_a_tenant_whose_waiting_tokens_are_too_many_is_refused_with_the_time_of_those_ahead() -> (
    None
):
    waiting = Waiting(of_tenant=901, of_model=901, ahead=901, tokens_per_s=100)
    assert admit(Arrival(99), waiting, BOUNDS, 0) == Admitted(60 * SECOND_NS)
    assert admit(Arrival(100), waiting, BOUNDS, 0) == Refused(admission.TENANT_FULL, 429, 10)


def test_a_tenant_with_too_many_waiting_requests_is_refused_however_small_they_are() -> None:
    bounds = BOUNDS._replace(tenant_requests=3)
    waiting = Waiting(of_tenant=2, of_model=2, ahead=2, tokens_per_s=1, tenant_requests=2)
    assert admit(Arrival(1), waiting, bounds, 0) == Admitted(60 * SECOND_NS)
    refused = admit(Arrival(1), waiting._replace(tenant_requests=3), bounds, 0)
    assert refused == Refused(admission.TENANT_REQUESTS, 429, 2)


def test_each_lower_band_may_fill_less_of_the_model() -> None:
    assert [BOUNDS.of_band(band) for band in range(4)] == [4_000, 3_000, 2_000, 2_000]
    assert BOUNDS._replace(bands=1).of_band(0) == 4_000
    bounds = BOUNDS._replace(tenant_tokens=4_000)
    waiting = Waiting(of_tenant=2_900, of_model=2_950, ahead=2_950, tokens_per_s=0, tenants=2)
    verdicts = [admit(Arrival(60, band), waiting, bounds, 0) for band in range(3)]
    refused = Refused(admission.MODEL_FULL, 429, admission.UNKNOWN_S)
    assert verdicts == [Admitted(60 * SECOND_NS), refused, refused]


def test_a_full_model_refuses_no_tenant_below_an_equal_part() -> None:
    full = Waiting(of_tenant=700, of_model=4_000, ahead=4_000, tokens_per_s=100, tenants=4)
    assert admit(Arrival(300), full, BOUNDS, 0) == Admitted(60 * SECOND_NS)
    more = full._replace(of_tenant=600, tenants=5)
    assert admit(Arrival(300), more, BOUNDS, 0) == Refused(admission.MODEL_FULL, 429, 40)


def test_a_request_larger_than_a_bound_may_wait_alone() -> None:
    assert admit(Arrival(9_999), EMPTY, BOUNDS, 0) == Admitted(60 * SECOND_NS)
    waiting = Waiting(of_tenant=1, of_model=1, ahead=1, tokens_per_s=1_000)
    assert admit(Arrival(9_999), waiting, BOUNDS, 0) == Refused(admission.TENANT_FULL, 429, 1)


def test_a_request_that_cannot_meet_its_deadline_is_refused_at_once() -> None:
    waiting = Waiting(of_tenant=0, of_model=500, ahead=500, tokens_per_s=100)
    late = Arrival(1, deadline_ns=5 * SECOND_NS)
    assert admit(late, waiting, BOUNDS, 0) == Refused(admission.TOO_LATE, 503, 5)
    in_time = Arrival(1, deadline_ns=5 * SECOND_NS + 1)
    assert admit(in_time, waiting, BOUNDS, 0) == Admitted(5 * SECOND_NS + 1)


def test_a_deadline_is_not_judged_while_the_rate_is_unknown_unless_it_has_passed() -> None:
    unknown = Waiting(of_tenant=0, of_model=500, ahead=500, tokens_per_s=0)
    assert admit(Arrival(1, deadline_ns=10), unknown, BOUNDS, 9) == Admitted(10)
    passed = admit(Arrival(1, deadline_ns=10), unknown, BOUNDS, 10)
    assert passed == Refused(admission.TOO_LATE, 503, admission.UNKNOWN_S)


def test_the_time_to_try_again_is_bounded() -> None:
    slow = Waiting(of_tenant=1_000, of_model=1_000, ahead=1 << 40, tokens_per_s=1)
    refused = admit(Arrival(1), slow, BOUNDS, 0)
    assert refused == Refused(admission.TENANT_FULL, 429, admission.RETRY_MAX_S)


AMOUNT = st.integers(1, 2_000)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), AMOUNT, st.integers(0, 2), st.booleans())))
def test_waiting_tokens_never_exceed_the_bounds_by_more_than_one_lone_request(
    steps: list[tuple[str, int, int, bool]],
) -> None:
    """A naive queue follows the verdicts; requests leave now and then."""
    queue: list[tuple[str, int]] = []
    for tenant, tokens, band, leaves in steps:
        own = [size for each, size in queue if each == tenant]
        total = sum(size for _, size in queue)
        tenants = len({tenant} | {each for each, _ in queue})
        waiting = Waiting(sum(own), total, total, 100, tenants)
        bound = (4_000, 3_000, 2_000)[band]
        fits = (not own or sum(own) + tokens <= 1_000) and (
            not queue or total + tokens <= bound or sum(own) + tokens <= bound / tenants
        )
        verdict = admit(Arrival(tokens, band), waiting, BOUNDS, 0)
        assert isinstance(verdict, Admitted) == fits
        if fits:
            queue.append((tenant, tokens))
        for each in "abc":
            sizes = [size for owner, size in queue if owner == each]
            assert sum(sizes) <= 1_000 or len(sizes) == 1
        if leaves and queue:
            queue.pop(0)
