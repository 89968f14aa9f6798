"""Requests about locks: accepted, or refused with the name of the field; and locks as shown."""

from typing import Any

import pytest

from libs.common import facts as f
from libs.common.errors import Refused
from libs.common.life import lock_life
from libs.common.model import TenantId
from libs.common.state import locks
from libs.common.state.locks import ClaimKey, Lock, LockClaim, TenantLocks, claim_of
from services.api_gateway.access.roles import Principal
from services.api_gateway.intents import lock_intents as intents
from services.api_gateway.problems import Denied, Problem
from services.api_gateway.views.locks import claim_over, claim_shown, lock_shown
from tests.given import SECOND_NS, given

RED = TenantId("red")
ADA = Principal("k", "red", "ada", "member")
BOB = Principal("l", "red", "bob", "member")
A = ClaimKey(RED, "data", "a")


def wish(**body: Any) -> f.LockRequested:
    return intents.request_of(body, "data", ADA, "fresh")


def held_and_waiting() -> locks.Locks:
    """A lock that `a` holds and for which `b` waits."""
    history = [
        f.LockRequested(tenant=RED, lock="data", holder=name, ttl_ms=30_000, wait_ms=9, user="ada")
        for name in "ab"
    ]
    granted = f.LockGranted(**A._asdict(), token=7, expires_ns=60 * SECOND_NS)
    return given(history, granted).cluster.locks


def claim(found: locks.Locks, key: ClaimKey = A) -> LockClaim:
    known = claim_of(found, key)
    assert known is not None
    return known


def test_a_request_has_a_time_to_live_and_waits_for_nothing_by_default() -> None:
    assert wish() == f.LockRequested(
        tenant=RED, lock="data", holder="fresh", ttl_ms=30_000, wait_ms=0, user="ada"
    )


def test_a_request_names_its_claim_its_time_and_its_wait() -> None:
    found = wish(holder="h", ttl="1m", wait=90)
    assert (found.holder, found.ttl_ms, found.wait_ms) == ("h", 60_000, 90_000)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"ttl": 4}, "ttl"),
        ({"ttl": "2h"}, "ttl"),
        ({"wait": "2d"}, "wait"),
        ({"holder": "a b"}, "holder"),
        ({"holders": "a"}, "holder"),
        ([], "JSON object"),
    ],
)
def test_a_request_out_of_bounds_is_refused_with_its_field(body: object, field: str) -> None:
    with pytest.raises(Refused, match=field):
        intents.request_of(body, "data", ADA, "fresh")


def test_a_name_that_is_not_valid_is_refused() -> None:
    for name in ("", "-a", "a/b", "x" * 64):
        with pytest.raises(Refused, match="name"):
            intents.request_of(None, name, ADA, "fresh")
        with pytest.raises(Refused, match="name"):
            intents.key_of({"holder": "h"}, name, ADA)


def test_a_renewal_must_name_its_holder() -> None:
    assert intents.key_of({"holder": "a"}, "data", ADA) == A
    with pytest.raises(Refused, match="holder"):
        intents.key_of({}, "data", ADA)


def test_only_its_user_and_operators_change_a_claim() -> None:
    found = held_and_waiting()
    assert intents.claim_to_change(found, A, ADA).holder == "a"
    with pytest.raises(Denied):
        intents.claim_to_change(found, A, BOB)


def test_an_unknown_claim_is_not_found_and_an_ended_one_says_why() -> None:
    with pytest.raises(Problem, match="has no claim a") as unknown:
        intents.claim_to_change({}, A, ADA)
    assert unknown.value.status == 404
    ended = {RED: TenantLocks(ended={"data/a": lock_life.EXPIRED})}
    with pytest.raises(Problem, match="time to live passed") as over:
        intents.claim_to_change(ended, A, ADA)
    assert (over.value.status, over.value.more["reason"]) == (409, lock_life.EXPIRED)


def test_a_claim_that_cannot_wait_is_refused_while_the_lock_is_held() -> None:
    with pytest.raises(Problem, match="held by ada") as held:
        intents.check_room(held_and_waiting(), wish())
    assert held.value.status == 409
    intents.check_room(held_and_waiting(), wish(wait=9))
    intents.check_room({}, wish())


def test_a_tenant_with_the_maximum_of_claims_is_refused_another() -> None:
    full = {
        "claims on locks": TenantLocks(claims=locks.CLAIMS_OF_TENANT_MAX),
        "256 locks": TenantLocks(locks={f"l{n}": Lock(f"l{n}") for n in range(locks.LOCKS_MAX)}),
        "lock data has": TenantLocks(
            locks={
                "data": Lock(
                    "data", {f"h{n}": claim(held_and_waiting()) for n in range(256)}, held_by="h0"
                )
            }
        ),
    }
    for text, own in full.items():
        with pytest.raises(Problem, match=text) as refused:
            intents.check_room({RED: own}, wish(wait=9))
        assert refused.value.status == 429


def test_a_holder_renews_but_not_too_often() -> None:
    held = claim(held_and_waiting())
    fact = f.LockRenewRequested(**A._asdict())
    held.renewal_asked_ns = 100 * SECOND_NS
    assert intents.renewal(A, held, 106 * SECOND_NS) == fact
    assert intents.renewal(A, held, 99 * SECOND_NS) == fact
    with pytest.raises(Problem, match="at most every 6 s") as early:
        intents.renewal(A, held, 102 * SECOND_NS)
    assert (early.value.status, early.value.more["retry_after_s"]) == (429, 4)


def test_a_claim_that_waits_cannot_be_renewed() -> None:
    key = A._replace(holder="b")
    with pytest.raises(Problem, match="is not held by b yet"):
        intents.renewal(key, claim(held_and_waiting(), key), 0)


def test_a_release_names_its_user() -> None:
    assert intents.release(A, "ada") == f.LockReleaseRequested(**A._asdict(), user="ada")


def test_a_lock_shows_its_holder_and_its_queue() -> None:
    found = held_and_waiting()
    lock = found[RED].locks["data"]
    shown = lock_shown(RED, lock)
    assert (shown.holder, shown.user, shown.token, shown.waiting) == ("a", "ada", 7, 1)
    assert [(each.holder, each.state, each.before) for each in shown.claims] == [
        ("a", "held", 0),
        ("b", "waiting", 1),
    ]
    assert claim_shown(lock, lock.claims["b"]) == shown.claims[1]
    assert shown.claims[0].held_at == "1970-01-01T00:00:30.000Z"
    assert claim_over("data", lock.claims["a"]).state == lock_life.OVER


def test_a_free_lock_shows_no_holder() -> None:
    waits = f.LockRequested(tenant=RED, lock="data", holder="a", ttl_ms=30_000)
    lock = given(waits).cluster.locks[RED].locks["data"]
    shown = lock_shown(RED, lock)
    assert (shown.holder, shown.user, shown.token) == ("", "", 0)
