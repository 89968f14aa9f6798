"""Requests about prices and idle GPUs: accepted, or refused with what to do."""

from typing import Any

import pytest

from libs.common import facts as f
from libs.common import prices
from libs.common.errors import Refused
from libs.common.model import TenantId
from services.api_gateway.intents import price_intents as intents
from services.api_gateway.problems import Problem
from services.api_gateway.views.history import summary
from services.api_gateway.views.prices import prices_shown
from tests.given import given, tell

CLUSTER = given().cluster


def test_a_price_is_kept_in_millionths() -> None:
    fact = intents.price(CLUSTER, {"price": "2.50", "currency": "EUR"}, "h100", "ada")
    assert fact == f.PriceSet(name="h100", micros_per_hour=2_500_000, currency="EUR", user="ada")
    assert intents.price(CLUSTER, {"price": 2.5, "currency": "eur"}, "h100", "ada") == fact
    assert summary(fact) == "price of h100: 2.50 EUR for one GPU and hour, by ada"
    assert intents.micros_of(0.1) == 100_000 and intents.micros_of(3) == 3_000_000


def test_the_currency_is_that_of_the_last_price() -> None:
    cluster = given().cluster
    for at_s, currency in ((2, "USD"), (1, "EUR")):
        tell(cluster, f.PriceSet(name=f"g{at_s}", micros_per_hour=1, currency=currency), at_s=at_s)
    assert intents.price(cluster, {"price": 1}, "a100", "").currency == "USD"


@pytest.mark.parametrize(
    ("name", "body", "words"),
    [
        ("H 100!", {"price": 1}, "is not the name of a GPU"),
        ("h100", {}, "price: missing"),
        ("h100", {"price": 1}, "currency: missing"),
        ("h100", {"price": 1, "currency": "euro"}, "'euro' is not a currency"),
        ("h100", {"price": "much", "currency": "EUR"}, "'much' is not a price"),
        ("h100", {"price": "0.0000001", "currency": "EUR"}, "at most six decimal places"),
        ("h100", {"price": -1, "currency": "EUR"}, "out of range"),
        ("h100", {"price": "1e99", "currency": "EUR"}, "out of range"),
        ("h100", {"price": "1e999999", "currency": "EUR"}, "'1e999999' is not a price"),
        ("h100", {"price": 1, "curency": "EUR"}, "did you mean 'currency'"),
    ],
)
def test_an_invalid_price_is_refused(name: str, body: Any, words: str) -> None:
    with pytest.raises(Refused, match=words):
        intents.price(CLUSTER, body, name, "")


def test_a_full_price_list_takes_no_new_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prices, "NAMES_MAX", 0)
    with pytest.raises(Problem, match="use or remove one of them"):
        intents.price(CLUSTER, {"price": 1, "currency": "EUR"}, "h100", "")


def test_a_removed_name_makes_room_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prices, "NAMES_MAX", 2)
    cluster = given().cluster
    for name in ("h100", "a100"):
        tell(cluster, f.PriceSet(name=name, micros_per_hour=1, currency="EUR"), at_s=1)
    for at_s, name in ((3, "h100"), (2, "a100")):
        tell(cluster, intents.price_removal(cluster, name, "ada"), at_s=at_s)
    tell(cluster, intents.price(cluster, {"price": 1, "currency": "EUR"}, "b200", ""), at_s=4)
    assert list(cluster.prices) == ["h100", "b200"]


def test_a_price_is_removed_from_now_on() -> None:
    cluster = given().cluster
    with pytest.raises(Problem, match="there is no price"):
        intents.price_removal(cluster, "h100", "")
    tell(cluster, f.PriceSet(name="h100", micros_per_hour=1, currency="EUR"), at_s=1)
    tell(cluster, f.PriceSet(name="any", micros_per_hour=2, currency="EUR"), at_s=1)
    gone = intents.price_removal(cluster, "h100", "ada")
    assert summary(gone) == "price of h100: removed, by ada"
    tell(cluster, gone, at_s=2)
    assert [(each.name, each.until) for each in prices_shown(cluster).prices] == [
        ("any", None),
        ("h100", "1970-01-01T00:00:02.000Z"),
    ]
    assert [each.price for each in prices_shown(cluster, "h100").prices] == ["0.000001"]
    assert prices.in_force(cluster.prices, "h100", 3_000_000_000).micros_per_hour == 2


def test_a_policy_for_idle_gpus() -> None:
    body = {"action": "release", "idle_for": "1h", "grace": 60}
    fact = intents.idle_policy(body, TenantId("t"), "ada")
    assert fact == f.IdlePolicySet(
        tenant=TenantId("t"), action="release", idle_s=3_600, grace_s=60, user="ada"
    )
    assert summary(fact) == "jobs of t with idle GPUs: release after 3600 s, by ada"
    off = intents.idle_policy({"action": "off"}, TenantId("t"), "")
    assert summary(off) == "jobs of t with idle GPUs: off, by an unknown user"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (None, "action: missing"),
        ({"action": "kill"}, "action: 'kill' is not known"),
        ({"action": "warn", "idle_for": "10s"}, "idle_for"),
        ({"action": "warn", "grace": -1}, "grace"),
        ({"action": "warn", "after": 1}, "after"),
    ],
)
def test_an_invalid_policy_is_refused(body: Any, words: str) -> None:
    with pytest.raises(Refused, match=words):
        intents.idle_policy(body, TenantId("t"), "")


def test_idle_devices_in_one_line() -> None:
    job: dict[str, Any] = {"job_id": "j", "attempt": 1}
    assert summary(f.JobIdleSeen(node_id="n", idle_ms=61_000, **job)) == (
        "the GPUs of attempt 1 on n have been idle for 61 s"
    )
    assert summary(f.JobIdleSeen(node_id="n", **job)) == "the GPUs of attempt 1 on n compute again"
    warned = f.JobIdleWarned(idle_s=600, action="release", since_ns=1, ends_ns=10**9, **job)
    assert summary(warned) == (
        "warned that all GPUs have been idle for 600 s: release at 1970-01-01T00:00:01.000Z"
    )
    assert summary(f.JobIdleWarned(idle_s=9, action="warn", **job)).endswith("idle for 9 s")
