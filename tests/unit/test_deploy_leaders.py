"""Which answers of the gateway show that the services of the head work."""

import pytest

from libs.common.errors import Unavailable
from libs.deploy.leaders import KEPT_NS, LED, Leaders, Shown, terms


def member(service: str, epoch: int, state: str = "leader") -> dict[str, object]:
    return {"service": service, "epoch": epoch, "state": state}


def shown(*more: dict[str, object], **epochs: int) -> Shown:
    """Return an answer with a gateway, a leader of each service, and these members."""
    led = dict.fromkeys(LED, 7) | epochs
    services = [member(service, epoch) for service, epoch in led.items() if epoch]
    return {"members": [member("gateway", 0, "active"), *services, *more]}


def test_services_work_when_their_leaders_have_led_for_a_while() -> None:
    leaders = Leaders({})
    assert not leaders.are_kept(shown(), 5)
    assert not leaders.are_kept(shown(), 4 + KEPT_NS)
    assert leaders.are_kept(shown(), 5 + KEPT_NS)


@pytest.mark.parametrize("service", LED)
def test_a_service_without_a_leader_is_named(service: str) -> None:
    followers = [member(service, 7, "follower"), member(service, 7, "away")]
    with pytest.raises(Unavailable, match=f"no process leads: {service}$"):
        Leaders({}).are_kept(shown(*followers, **{service: 0}), 5)


def test_a_leader_from_before_the_start_does_not_count() -> None:
    leaders = Leaders({"scheduler": 7, "quota": 6})
    with pytest.raises(Unavailable, match=r"no process leads: scheduler$"):
        leaders.are_kept(shown(), 5)


def test_a_service_whose_leader_changes_begins_again() -> None:
    leaders = Leaders({})
    leaders.are_kept(shown(), 5)
    assert not leaders.are_kept(shown(quota=8), 5 + KEPT_NS)
    assert leaders.are_kept(shown(quota=8), 5 + 2 * KEPT_NS)


def test_services_begin_again_after_the_gateway_did_not_answer() -> None:
    leaders = Leaders({})
    leaders.are_kept(shown(), 5)
    leaders.forget()
    assert not leaders.are_kept(shown(), 5 + KEPT_NS)


def test_terms_are_the_newest_of_each_service() -> None:
    found = terms(shown(member("quota", 9, "follower"), member("scheduler", 3, "away"), audit=0))
    assert found == {"scheduler": 7, "quota": 9, "audit": 0}


def test_a_gateway_that_does_not_show_its_services_must_answer_for_as_long() -> None:
    assert terms(None) == {}
    leaders = Leaders({"quota": 7})
    assert not leaders.are_kept(None, 5)
    leaders.forget()
    assert not leaders.are_kept(None, 6)
    assert leaders.are_kept(None, 6 + KEPT_NS)
