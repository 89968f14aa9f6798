"""Second tries in late binding: a request at two replicas counts at both and is charged once."""

from services.api_gateway.serving.late_binding import Ticket
from services.api_gateway.serving.routing import Prompt
from tests.unit.test_serving_late_binding import A, arrived, bound, replica_of, rules, ticket


def test_a_second_replica_counts_the_request_and_charges_nothing() -> None:
    found, one = rules(), ticket()
    arrived(found, one)
    bound(found, "r", "s")
    before, first = found.fairness.counter(A), replica_of(one)
    second = found.second(one, ["r", "s"], 0)
    assert second is not None and {second.replica, first} == {"r", "s"}
    loads = found.router.loads
    assert [loads.of(each).outstanding for each in "rs"] == [1, 1]
    assert found.fairness.counter(A) == before
    found.withdraw_second(second, 1)
    assert loads.of(second.replica).outstanding == 0


def test_the_replica_that_takes_over_is_the_only_one_that_counts() -> None:
    found, one = rules(), ticket()
    arrived(found, one)
    bound(found, "r", "s")
    before = found.fairness.counter(A)
    second = found.second(one, ["r", "s"], 0)
    assert second is not None
    found.end(one, 1)
    found.moved_to_second(one, second, 1)
    assert replica_of(one) == second.replica
    assert found.fairness.counter(A) == before, "one turn was paid"
    found.end(one, 2)
    assert [found.router.loads.of(each).outstanding for each in "rs"] == [0, 0]


def test_after_a_failure_that_cost_nothing_the_second_replica_s_work_is_paid() -> None:
    found, one = rules(), ticket()
    arrived(found, one)
    bound(found, "r", "s")
    before = found.fairness.counter(A)
    second = found.second(one, ["r", "s"], 0)
    assert second is not None
    found.give_back(one, 1)
    found.end(one, 1)
    found.moved_to_second(one, second, 1)
    assert found.fairness.counter(A) == before


def test_no_second_try_takes_the_room_of_a_request_that_waits() -> None:
    found, one = rules(), ticket()
    arrived(found, one, ticket(), ticket())
    assert len(bound(found, "r", "s")) == 2
    assert found.second(one, ["r", "s", "t"], 0) is None


def test_no_second_try_goes_to_a_tried_a_busy_or_an_avoided_replica() -> None:
    found, one = rules(), ticket()
    assert found.second(one, ["r"], 0) is None, "it is at no replica"
    arrived(found, one)
    bound(found, "r")
    assert found.second(one, ["r"], 0) is None
    one.tried = ("s",)
    assert found.second(one, ["r", "s"], 0) is None
    found.router.loads.begin("t", 1_300, 0)
    assert found.second(one, ["r", "t"], 0) is None
    found.router.loads.failed(found.router.loads.begin("u", 1, 0), 0)
    assert found.second(one, ["r", "u"], 0) is None
    assert found.second(one, ["r", "v"], 0) is not None


def test_a_second_try_does_not_move_a_session() -> None:
    found = rules()
    one = Ticket[str](A, Prompt(10, 40, (), 7), 100)
    arrived(found, one)
    bound(found, "r", "s")
    first = replica_of(one)
    second = found.second(one, ["r", "s"], 0)
    assert second is not None
    found.withdraw_second(second, 1)
    found.end(one, 1)
    again = Ticket[str](A, Prompt(10, 40, (), 7), 100)
    arrived(found, again)
    bound(found, "r", "s", now_ns=2)
    assert replica_of(again) == first
