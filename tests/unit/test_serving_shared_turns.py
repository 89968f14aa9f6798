"""Messages of gateways about tenants' turns, and their effect on the counters."""

from libs.common.messages.model_turns import ModelTurns, Turn, decode, encode
from services.api_gateway.serving.adapters import Wanted
from services.api_gateway.serving.admission import Bounds
from services.api_gateway.serving.fairness import AHEAD_TOKENS, SCALE, SECOND_NS, Fairness, Flow
from services.api_gateway.serving.late_binding import HELD_BACK_NS, LateBinding, Ticket
from services.api_gateway.serving.routing import Prompt, Router
from services.api_gateway.serving.shared_turns import (
    FLOWS_MAX,
    SENDERS_MAX,
    SILENT_NS,
    SharedTurns,
)

A, B, LOW = Flow(0, "a"), Flow(0, "b"), Flow(1, "a")
MUCH = AHEAD_TOKENS + 1


def turns() -> SharedTurns:
    return SharedTurns(Fairness())


def told(shared: SharedTurns, *report: Turn, sender: str = "g2", now_ns: int = 0) -> None:
    shared.heard(sender, list(report), now_ns)


def test_a_report_has_the_charges_since_the_last_one_and_who_waits() -> None:
    shared = turns()
    assert shared.report() == []
    shared.charged(A, 2, 100)
    shared.charged(A, 2, -40)
    shared.charged(LOW, 2, 7)
    shared.fairness.arrive(B, 5, 0)
    assert shared.report() == [
        Turn(0, "b", 5, 0, True),
        Turn(0, "a", 2, 60, False),
        Turn(1, "a", 2, 7, False),
    ]
    assert shared.report() == [Turn(0, "b", 5, 0, True)], "it waits still"


def test_a_report_is_bounded_and_the_rest_follows() -> None:
    shared = turns()
    for number in range(FLOWS_MAX + 1):
        shared.charged(Flow(0, str(number)), 1, 1)
    assert [len(shared.report()) for _ in range(3)] == [FLOWS_MAX, 1, 0]


def test_a_message_is_what_was_sent() -> None:
    message = ModelTurns("m", [Turn(0, "a", 2, -60, True)])
    assert decode(encode(message)) == message


def test_charges_of_others_count_like_own_ones() -> None:
    shared = turns()
    fairness = shared.fairness
    fairness.arrive(A, 1, 0)
    fairness.arrive(B, 1, 0)
    assert fairness.choose(0) == A
    told(shared, Turn(0, "a", 1, 50, False))
    assert fairness.counter(A) == 50 * SCALE and fairness.choose(0) == B


def test_a_tenant_that_is_only_known_elsewhere_is_charged_by_its_weight() -> None:
    shared = turns()
    told(shared, Turn(0, "a", 4, 100, False))
    assert shared.fairness.counter(A) == 25 * SCALE


def test_a_tenant_that_comes_back_elsewhere_is_lifted_here() -> None:
    shared = turns()
    fairness = shared.fairness
    fairness.arrive(A, 1, 0)
    fairness.charge(A, 1_000, 0, 0)
    told(shared, Turn(0, "b", 1, 0, True))
    assert fairness.counter(B) == 1_000 * SCALE
    fairness.charge(A, 500, 0, 0)
    told(shared, Turn(0, "b", 1, 0, True))
    assert fairness.counter(B) == 1_000 * SCALE, "it waits all the time"
    fairness.arrive(B, 1, 0)
    assert fairness.counter(B) == 1_000 * SCALE
    assert fairness.choose(0) == B


def test_a_tenant_that_comes_back_here_begins_at_the_level_of_those_elsewhere() -> None:
    shared = turns()
    told(shared, Turn(0, "a", 1, 900, True))
    shared.fairness.arrive(B, 1, 0)
    assert shared.fairness.counter(B) == 900 * SCALE


def test_a_tenant_begins_at_the_level_of_those_that_are_served_at_once_elsewhere() -> None:
    shared = turns()
    told(shared, Turn(0, "a", 1, 900, False), Turn(0, "c", 1, 700, False))
    shared.fairness.arrive(B, 1, 0)
    assert shared.fairness.counter(B) == 700 * SCALE


def test_a_silent_gateway_has_no_requests_that_wait() -> None:
    shared = turns()
    told(shared, Turn(0, "b", 1, 0, True))
    shared.fairness.charge_elsewhere(A, 1, MUCH, 0)
    assert shared.fairness.is_ahead(A)
    shared.settle(SILENT_NS)
    assert shared.fairness.is_ahead(A)
    shared.settle(SILENT_NS + 1)
    assert not shared.fairness.is_ahead(A) and not shared.fairness.is_shared


def test_the_last_report_of_each_gateway_counts() -> None:
    shared = turns()
    told(shared, Turn(0, "b", 1, 0, True))
    told(shared, Turn(0, "a", 1, MUCH, False), sender="g3")
    assert shared.fairness.is_ahead(A)
    told(shared)
    assert not shared.fairness.is_ahead(A)


def test_no_more_gateways_are_heard_than_can_be() -> None:
    shared = turns()
    for number in range(SENDERS_MAX):
        told(shared, sender=str(number))
    told(shared, Turn(0, "a", 1, 50, True), sender="one more")
    assert shared.fairness.counter(A) == 0


class TestHoldingBack:
    def rules(self) -> LateBinding[str]:
        bounds = Bounds(
            tenant_tokens=10_000,
            model_tokens=10_000,
            lowest_tokens=10_000,
            bands=1,
            wait_ns=1 << 60,
        )
        return LateBinding(bounds, Router())

    def test_only_a_large_lead_over_one_that_waits_elsewhere_holds_back(self) -> None:
        fairness = Fairness()
        assert not fairness.is_ahead(A)
        fairness.wait_elsewhere({B: 1})
        assert not fairness.is_ahead(A) and not fairness.is_ahead(LOW)
        fairness.arrive(A, 2, 0)
        fairness.charge(A, AHEAD_TOKENS, 0, 0)
        assert not fairness.is_ahead(A)
        fairness.charge(A, 2, 0, 0)
        assert fairness.is_ahead(A)
        assert fairness.waiting() == {A: 2}

    def test_a_tenant_far_ahead_waits_for_one_elsewhere_but_not_for_ever(self) -> None:
        rules, first, second = self.rules(), ticket(), ticket()
        assert rules.at_once(first, ["r"], SECOND_NS)
        rules.first_token(first, SECOND_NS)
        told(rules.shared, Turn(0, "b", 1, 0, True), now_ns=SECOND_NS)
        rules.charge_output(first, MUCH, SECOND_NS)
        assert not rules.at_once(second, ["r"], SECOND_NS)
        assert rules.arrive(second, SECOND_NS) is None
        assert rules.next(["r"], SECOND_NS, set()) is None
        assert rules.next(["r"], SECOND_NS + HELD_BACK_NS, set()) is second

    def test_it_goes_on_when_the_other_has_got_its_part(self) -> None:
        rules, first, second = self.rules(), ticket(), ticket()
        assert rules.at_once(first, ["r"], SECOND_NS)
        rules.first_token(first, SECOND_NS)
        told(rules.shared, Turn(0, "b", 1, 0, True), now_ns=SECOND_NS)
        rules.charge_output(first, MUCH, SECOND_NS)
        told(rules.shared, Turn(0, "b", 1, 2 * MUCH, True), now_ns=SECOND_NS)
        assert rules.at_once(second, ["r"], SECOND_NS)


def ticket() -> Ticket[str]:
    return Ticket(A, Prompt(10, 40), 1)


def test_a_request_without_an_adapter_slot_holds_no_tenant_of_other_gateways_back() -> None:
    one, two = TestHoldingBack().rules(), TestHoldingBack().rules()
    waits = Ticket[str](B, Prompt(10, 40))
    waits.adapter = Wanted("sql", 1)
    one.residency.resident_max = 1
    one.residency.begin(Wanted("code", 2), "r")
    assert one.arrive(waits, 0) is None
    told(two.shared, *one.shared.report(one.skipped))
    two.fairness.charge(A, MUCH, 0, 0)
    assert two.fairness.is_ahead(A), "it waits for its turn, as far as one knows"
    skipped = set[Flow]()
    assert one.next(("r",), 0, skipped) is None and skipped == {B}
    one.shared.charged(B, 1, 5)
    report = one.shared.report(one.skipped)
    assert report == [Turn(0, "b", 1, 5, False)]
    told(two.shared, *report)
    assert two.at_once(Ticket(A, Prompt(10, 40)), ("r",), 1)
