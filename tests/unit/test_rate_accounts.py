"""Which accounts a request counts in, and the limits of each."""

import pytest

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.model import TenantId
from libs.common.model_spec import ModelSpec
from libs.common.state.accounts import has_limits, limits_of, of_request
from libs.common.state.cluster import Cluster
from libs.common.state.rate_limits import RateLimits, key_account, model_account
from tests.history import History

OWNER, GUEST, OTHER = TenantId("physics"), TenantId("biology"), TenantId("chemistry")
DEPLOYED = f.ModelDeployed(name="chat", spec=ModelSpec(command=("serve",)), tenant=OWNER)
CHAT, KEY = model_account("chat"), key_account("k1")


def key(**limits: int) -> f.KeyCreated:
    return f.KeyCreated(
        key_id="k1", secret_hash="h", tenant=GUEST, user="ada", role="member", **limits
    )


def at(guest: str, requests: int = 0, tokens: int = 0) -> f.ModelLimitsSet:
    return f.ModelLimitsSet(
        name="chat", guest=guest, requests_per_minute=requests, tokens_per_minute=tokens
    )


def after(*facts: AnyFact) -> Cluster:
    history = History()
    history.say(*facts)
    return history.cluster


def asked(cluster: Cluster, tenant: TenantId = GUEST) -> list[tuple[str, RateLimits]]:
    found = of_request(cluster, tenant, "k1", "chat")
    assert has_limits(cluster, tenant, "k1", "chat") is bool(found)
    assert [(name, limits_of(cluster, tenant, name)) for name, _ in found] == found
    return found


def test_a_request_without_limits_counts_in_no_account() -> None:
    assert asked(after(DEPLOYED, key())) == []
    assert asked(Cluster()) == []


def test_a_request_counts_in_the_accounts_of_its_tenant_its_key_and_its_model() -> None:
    cluster = after(
        DEPLOYED,
        f.TenantSet(tenant=GUEST, requests_per_minute=9),
        key(tokens_per_minute=8),
        at(GUEST, 7),
    )
    assert asked(cluster) == [(CHAT, RateLimits(7)), (KEY, RateLimits(0, 8)), ("", RateLimits(9))]


@pytest.mark.parametrize("account", ["", "key:k2", "model:other", "else:x"])
def test_an_unknown_account_has_no_limits(account: str) -> None:
    assert limits_of(after(DEPLOYED, key(), at(GUEST, 7)), OTHER, account) == RateLimits()


def test_the_limits_of_each_guest_are_neither_the_owner_s_nor_those_of_a_guest_with_its_own() -> (
    None
):
    cluster = after(DEPLOYED, at("*", 5), at(GUEST, 7))
    assert asked(cluster) == [(CHAT, RateLimits(7))]
    assert asked(cluster, OTHER) == [(CHAT, RateLimits(5))]
    assert asked(cluster, OWNER) == []
    assert asked(after(DEPLOYED, at(OWNER, 3)), OWNER) == [(CHAT, RateLimits(3))]


def test_limits_of_a_key_may_be_set_later_and_ended() -> None:
    later = f.KeyLimitsSet(key_id="k1", requests_per_minute=4, tokens_per_minute=5)
    assert asked(after(DEPLOYED, key(), later)) == [(KEY, RateLimits(4, 5))]
    assert asked(after(DEPLOYED, key(), later, f.KeyLimitsSet(key_id="k1"))) == []
    assert asked(after(DEPLOYED, key(requests_per_minute=2), f.KeyLimitsSet(key_id="k1"))) == []
    assert asked(after(DEPLOYED, f.KeyLimitsSet(key_id="k9", requests_per_minute=1))) == []


def test_limits_at_a_model_end_with_the_share_and_with_the_model() -> None:
    shared, ended = (
        f.ModelShareSet(name="chat", guest=GUEST, removed=removed) for removed in (False, True)
    )
    assert asked(after(DEPLOYED, at(GUEST, 7), shared)) == [(CHAT, RateLimits(7))]
    assert asked(after(DEPLOYED, shared, at(GUEST, 7), at(GUEST))) == []
    assert asked(after(DEPLOYED, shared, at(GUEST, 7), ended)) == []
    gone = after(DEPLOYED, shared, at(GUEST, 7), f.ModelUndeployed(name="chat"), DEPLOYED)
    assert asked(gone) == []


def test_limits_of_a_model_that_belongs_to_another_tenant_meanwhile_are_ignored() -> None:
    late = f.ModelLimitsSet(name="chat", guest=GUEST, requests_per_minute=7, tenant=OTHER)
    assert asked(after(DEPLOYED, late)) == []


def test_limits_of_a_model_that_is_not_deployed_are_ignored() -> None:
    assert after(at(GUEST, 7)).models == {}
    gone = after(DEPLOYED, f.ModelUndeployed(name="chat"), at(GUEST, 7), at(GUEST))
    assert gone.models["chat"].limits == {}
