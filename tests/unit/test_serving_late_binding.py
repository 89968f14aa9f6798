"""Late binding: what waits, what is bound, and what is counted and charged for it."""

from random import Random

from services.api_gateway.serving import loads
from services.api_gateway.serving.admission import (
    MODEL_FULL,
    TENANT_FULL,
    TENANT_REQUESTS,
    Bounds,
    Refused,
)
from services.api_gateway.serving.fairness import SCALE, SECOND_NS, Flow
from services.api_gateway.serving.late_binding import PASSED_NS, RATE_S, LateBinding, Rate, Ticket
from services.api_gateway.serving.routing import Prompt, Router

A, B, LOW = Flow(0, "a"), Flow(0, "b"), Flow(1, "a")
BOUNDS = Bounds(
    tenant_tokens=10_000,
    model_tokens=20_000,
    lowest_tokens=10_000,
    bands=2,
    wait_ns=60 * SECOND_NS,
)
Rules = LateBinding[str]


def rules() -> Rules:
    return LateBinding(BOUNDS, Router())


def ticket(
    flow: Flow = A, tokens: int = 2_000, hashes: tuple[int, ...] = (), is_streamed: bool = True
) -> Ticket[str]:
    return Ticket(flow, Prompt(tokens, 4 * tokens, hashes), 100, is_streamed)


def arrived(found: Rules, *tickets: Ticket[str], now_ns: int = 0) -> None:
    for each in tickets:
        assert found.arrive(each, now_ns) is None


def bound(found: Rules, *replicas: str, now_ns: int = 0) -> list[Ticket[str]]:
    tickets, skipped = [], set[Flow]()
    while (each := found.next(replicas, now_ns, skipped)) is not None:
        tickets.append(each)
    return tickets


def replica_of(one: Ticket[str]) -> str:
    assert one.sent is not None
    return one.sent.replica


class TestBinding:
    def test_a_request_is_bound_at_once_if_a_replica_has_room(self) -> None:
        found, one = rules(), ticket()
        arrived(found, one)
        assert (one.is_waiting, found.waiting_requests, found.waiting_tokens) == (True, 1, 2_000)
        assert bound(found, "r") == [one]
        assert replica_of(one) == "r"
        assert not one.is_waiting
        assert (found.waiting_requests, found.waiting_tokens, found.queues) == (0, 0, {})
        assert (found.of_tenant, found.of_flow) == ({}, {})

    def test_nothing_is_bound_without_room_or_without_a_replica(self) -> None:
        found, first, second = rules(), ticket(), ticket()
        arrived(found, first, second)
        assert bound(found) == []
        assert bound(found, "r") == [first]
        assert bound(found, "r") == []
        found.first_token(first, 1)
        assert bound(found, "r", now_ns=1) == [second]

    def test_requests_of_a_tenant_keep_their_order_and_tenants_take_turns(self) -> None:
        found = rules()
        greedy = [ticket() for _ in range(4)]
        modest = [ticket(B) for _ in range(2)]
        arrived(found, *greedy, *modest)
        order = []
        for _ in range(6):
            [one] = bound(found, "r")
            order.append(one)
            found.first_token(one, 0)
            found.end(one, 0)
        assert order == [greedy[0], modest[0], greedy[1], modest[1], greedy[2], greedy[3]]

    def test_a_lower_band_goes_last(self) -> None:
        found, low, high = rules(), ticket(LOW), ticket(B)
        arrived(found, low, high)
        assert bound(found, "r") == [high]

    def test_a_request_that_waits_for_its_holder_lets_other_tenants_pass(self) -> None:
        found = rules()
        hashes = tuple(range(31))
        holder = ticket(hashes=hashes)
        arrived(found, holder)
        bound(found, "r", "s")
        busy = ticket(tokens=9_900)
        busy.prompt = Prompt(9_900, 4 * 9_900, session=7)
        found.router._sessions[7] = replica_of(holder)
        found.end(holder, 0)
        arrived(found, busy)
        assert bound(found, "r", "s") == [busy]
        waits, other = ticket(tokens=2_400, hashes=hashes), ticket(B, 100)
        arrived(found, waits, other)
        assert bound(found, "r", "s") == [other]
        assert replica_of(other) != replica_of(busy)
        found.first_token(other, 1)
        assert bound(found, "r", "s", now_ns=SECOND_NS) == [waits]


class TestAtOnce:
    def test_a_request_that_finds_room_and_no_queue_never_waits(self) -> None:
        found, one = rules(), ticket()
        assert found.at_once(one, ("r",), 7)
        assert (replica_of(one), one.arrived_ns, found.waiting_requests) == ("r", 7, 0)
        assert found.fairness.counter(A) == 2_000 * SCALE // 100

    def test_it_waits_behind_others_and_for_room(self) -> None:
        found = rules()
        assert not found.at_once(ticket(), (), 0)
        assert found.at_once(ticket(), ("r",), 0)
        assert not found.at_once(ticket(B), ("r",), 0)
        arrived(found, ticket(B))
        assert not found.at_once(ticket(B, 1), ("r", "s"), 0)

    def test_the_counters_are_those_of_a_request_that_passed_the_queue(self) -> None:
        chance, quick, slow = Random(1), rules(), rules()
        for number in range(300):
            flow = chance.choice((A, B, LOW))
            tokens = chance.randrange(1, 2_000)
            at_once, queued = ticket(flow, tokens), ticket(flow, tokens)
            assert quick.at_once(at_once, ("r",), number)
            arrived(slow, queued, now_ns=number)
            assert bound(slow, "r", now_ns=number) == [queued]
            for found, one in ((quick, at_once), (slow, queued)):
                found.end(one, number)
            counters = [
                [found.fairness.counter(each) for each in (A, B, LOW)] for found in (quick, slow)
            ]
            assert counters[0] == counters[1]


class TestRefusals:
    def test_a_tenant_s_bound_refuses_with_the_time_that_the_tokens_ahead_need(self) -> None:
        found = rules()
        arrived(found, ticket(tokens=2_000))
        bound(found, "r")
        arrived(found, ticket(tokens=9_000))
        assert found.arrive(ticket(tokens=1_001), 0) == Refused(TENANT_FULL, 429, 5)
        assert found.retry_after_s(A, 0) == 5
        assert found.retry_after_s(A, 3 * SECOND_NS) == 18
        arrived(found, ticket(tokens=1_000))

    def test_a_tenant_s_requests_for_all_models_are_counted_together(self) -> None:
        bounds, counts = BOUNDS._replace(tenant_requests=2), dict[str, int]()
        one, other = (Rules(bounds, Router(), requests_of=counts) for _ in range(2))
        first = ticket(tokens=1)
        arrived(one, first)
        arrived(other, ticket(LOW, 1))
        assert counts == {"a": 2}
        assert one.arrive(ticket(tokens=1), 0) == Refused(TENANT_REQUESTS, 429, 5)
        arrived(one, ticket(B, 1))
        one.withdraw(first, 0)
        arrived(other, ticket(tokens=1))

    def test_a_full_model_refuses_who_has_more_than_an_equal_part(self) -> None:
        found = rules()
        arrived(found, ticket(tokens=9_000), ticket(B, 10_000), ticket(Flow(0, "c"), 100))
        assert found.arrive(ticket(tokens=950), 0) == Refused(MODEL_FULL, 429, 5)

    def test_a_lower_band_has_less_room_and_counts_all_before_it(self) -> None:
        found = rules()
        arrived(found, ticket(B, 6_000), ticket(Flow(1, "c"), 3_000))
        refused = found.arrive(ticket(LOW, 5_001), 0)
        assert refused is not None and refused.reason == MODEL_FULL
        found.rate.add(900, 0)
        assert found.retry_after_s(LOW, 0) == 10
        assert found.retry_after_s(A, 0) == 7

    def test_a_withdrawn_request_frees_its_place(self) -> None:
        found = rules()
        first, second, third = ticket(tokens=4_000), ticket(tokens=5_000), ticket(tokens=3_000)
        arrived(found, first, second)
        assert found.arrive(third, 1) is not None
        found.withdraw(second, 1)
        assert not second.is_waiting
        assert found.arrive(third, 1) is None
        assert bound(found, "r", "s", now_ns=2) == [first, third]


class TestCharges:
    def test_the_estimate_is_charged_at_dispatch_and_corrected_by_the_usage(self) -> None:
        found, one = rules(), ticket()
        arrived(found, one)
        bound(found, "r")
        assert found.fairness.counter(A) == 2_000 * SCALE // 100
        found.charge_output(one, 64, 0)
        assert found.fairness.counter(A) == 2_128 * SCALE // 100
        found.correct(one, 1_800, 100, 0)
        assert found.fairness.counter(A) == 2_000 * SCALE // 100
        assert found.shares.tokens() == {A: 2_000}

    def test_the_cached_part_of_a_prompt_stays_free(self) -> None:
        found, hashes = rules(), tuple(range(16))
        for number in range(2):
            one = ticket(tokens=1_024, hashes=hashes)
            arrived(found, one)
            bound(found, "r")
            found.correct(one, 2_000, 0, 0)
            found.end(one, 0)
            assert found.shares.tokens() == {A: 2_000}, number

    def test_a_failed_try_costs_nothing_and_its_replica_is_avoided(self) -> None:
        found, one = rules(), ticket()
        arrived(found, one)
        bound(found, "r")
        found.charge_output(one, 3, 0)
        found.failed(one, 0)
        found.give_back(one, 0)
        found.end(one, 0)
        assert found.shares.tokens() == {A: 0}
        assert found.router.loads.of("r").is_avoided(1)
        assert found.router.loads.of("r").outstanding == 0

    def test_a_replica_is_avoided_twice_as_long_each_time_until_it_answers_completely(self) -> None:
        found = rules()
        load = found.router.loads.of("r")

        def sent(now_s: int) -> Ticket[str]:
            one = ticket()
            arrived(found, one, now_ns=now_s * SECOND_NS)
            assert bound(found, "r", now_ns=now_s * SECOND_NS) == [one]
            return one

        def avoided_ns(now_s: int) -> int:
            one = sent(now_s)
            found.failed(one, now_s * SECOND_NS)
            found.end(one, now_s * SECOND_NS)
            return load.avoid_until_ns - now_s * SECOND_NS

        first, second = avoided_ns(100), avoided_ns(200)
        good = sent(300)
        found.answered(good)
        found.end(good, 300 * SECOND_NS)
        assert (second, avoided_ns(400)) == (2 * first, first)


class TestAnotherTry:
    def failed(self, found: Rules, one: Ticket[str]) -> None:
        found.failed(one, 0)
        one.tried = (*one.tried, replica_of(one))
        found.end(one, 0)
        found.put_back(one, 0)

    def test_it_goes_to_another_replica_before_later_requests(self) -> None:
        found, first, later = rules(), ticket(), ticket()
        arrived(found, first)
        bound(found, "r", "s")
        tried = replica_of(first)
        arrived(found, later)
        self.failed(found, first)
        assert bound(found, "r", "s") == [first]
        assert replica_of(first) == ("s" if tried == "r" else "r")
        assert list(found.queues[A]) == [later]
        assert first.expires_ns == BOUNDS.wait_ns

    def test_it_waits_for_an_untried_replica_and_lets_other_tenants_pass(self) -> None:
        found, first, other = rules(), ticket(), ticket(B)
        arrived(found, first)
        bound(found, "r")
        self.failed(found, first)
        found.router.loads.begin("s", 5_000, 0)
        found.router.loads.of("r").avoid_until_ns = 0
        arrived(found, other)
        assert bound(found, "r", "s") == [other]
        assert replica_of(other) == "r"

    def test_it_is_passed_for_a_short_time_and_then_an_untried_replica_drains(self) -> None:
        found, first = rules(), ticket(tokens=4_000)
        arrived(found, first)
        bound(found, "r")
        self.failed(found, first)
        found.router.loads.of("r").avoid_until_ns = 0
        others, now_ns = [ticket(B, 400) for _ in range(5)], 0
        for each in others:
            each.sent = found.router.loads.begin("s", 400, 0)
        while first.is_waiting and now_ns < 10 * SECOND_NS:
            now_ns += SECOND_NS // 100
            found.end(others.pop(0), now_ns)
            arrived(found, *(ticket(B, 400) for _ in range(10 - found.waiting_requests)))
            others += [each for each in bound(found, "r", "s", now_ns=now_ns) if each is not first]
        assert PASSED_NS <= now_ns <= 2 * PASSED_NS
        assert replica_of(first) == "s"

    def test_all_its_waits_together_are_bounded_without_the_time_at_replicas(self) -> None:
        found, first, passed_ns = rules(), ticket(), 10 * SECOND_NS
        assert found.at_once(first, ("r", "s"), 0)
        assert first.expires_ns == BOUNDS.wait_ns
        found.end(first, passed_ns)
        found.put_back(first, passed_ns)
        assert first.expires_ns == BOUNDS.wait_ns + passed_ns
        assert bound(found, "r", "s", now_ns=4 * passed_ns) == [first]
        found.end(first, 5 * passed_ns)
        found.put_back(first, 5 * passed_ns)
        assert first.expires_ns == BOUNDS.wait_ns + 2 * passed_ns, "it waited for 30 seconds"

    def test_a_tried_replica_is_better_than_none(self) -> None:
        found, first = rules(), ticket()
        arrived(found, first)
        bound(found, "r")
        self.failed(found, first)
        assert bound(found, "r") == [first]


class TestTime:
    def test_an_answer_that_is_not_streamed_has_no_first_token(self) -> None:
        found, whole, second = rules(), ticket(is_streamed=False), ticket()
        arrived(found, whole, second)
        assert bound(found, "r") == [whole]
        found.first_token(whole, 1)
        assert bound(found, "r", now_ns=1) == []
        expected_ns = 2_000 * SECOND_NS // loads.FIRST_RATE
        assert found.router.loads.next_ns() == expected_ns
        assert bound(found, "r", now_ns=expected_ns) == [second]

    def test_refresh_forgets_replicas_that_are_gone_once_they_are_idle(self) -> None:
        found, one = rules(), ticket(hashes=(1, 2, 3))
        arrived(found, one)
        bound(found, "r")
        found.refresh(("s",), 0)
        assert found.router.loads.known() == ["r"]
        found.end(one, 0)
        found.refresh(("s",), 0)
        assert found.router.loads.known() == []
        assert found.router.index.matches((1, 2, 3), ("r",), 0) == [0]

    def test_refresh_measures_who_waited(self) -> None:
        found = rules()
        arrived(found, ticket(), ticket(), ticket(B))
        found.refresh(("r",), 0)
        bound(found, "r")
        found.refresh(("r",), SECOND_NS)
        assert found.shares.jain(0) == 0.5


def test_the_rate_is_that_of_the_last_seconds() -> None:
    rate = Rate()
    assert rate.per_s(0) == 0
    rate.add(1_000, 0)
    rate.add(1_000, 1)
    assert rate.per_s(SECOND_NS) == 1_000
    rate.add(4_000, 3 * SECOND_NS)
    assert rate.per_s(3 * SECOND_NS) == 1_500
    assert rate.per_s(RATE_S * SECOND_NS) == 4_000 // 8
    assert rate.per_s((RATE_S + 3) * SECOND_NS) == 0
