"""A tenant is removed only without anything that still acts for it, and its name stays taken."""

import pytest

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.life import kept_life
from libs.common.model import TenantId
from services.api_gateway.intents import identity_intents as intents
from services.api_gateway.problems import Problem
from tests.given import given
from tests.history import job, submitted
from tests.unit.test_quota import TENANT, World

RED, BLUE = TenantId("red"), TenantId("blue")


def notification(tenant: TenantId) -> f.NotificationSet:
    return f.NotificationSet(tenant=tenant, name="n", form="webhook", shown="s", kinds=("job.",))


def kept(tenant: TenantId) -> f.ModelKeepRequested:
    return f.ModelKeepRequested(
        model=f"chat-of-{tenant}",
        tier=kept_life.HOST,
        tenant=tenant,
        user="ada",
        weights="/w",
        size_bytes=1,
    )


def removal(*facts: AnyFact) -> f.TenantSet:
    cluster = given(f.TenantSet(tenant=RED), f.TenantSet(tenant=BLUE), facts).cluster
    return intents.tenant_removal(cluster, cluster.tenants[RED], "root")


@pytest.mark.parametrize(
    ("fact", "words"),
    [
        (f.SecretSet(tenant=RED, name="s", version=1), "1 secrets"),
        (notification(RED), "1 notifications"),
        (kept(RED), "1 models with resident data"),
        (
            f.LockRequested(tenant=RED, lock="l", holder="h", ttl_ms=1_000, user="ada"),
            "1 claims on locks",
        ),
    ],
)
def test_a_tenant_with_something_that_its_successor_would_inherit_stays(
    fact: AnyFact, words: str
) -> None:
    with pytest.raises(Problem, match=f"it still has {words}: "):
        removal(fact)


def test_resident_data_that_another_gateway_keeps_meanwhile_is_dropped() -> None:
    gone = f.TenantSet(tenant=RED, removed=True)
    before = given(f.TenantSet(tenant=RED), kept(RED), kept(BLUE), gone).cluster
    assert [each.tenant for each in before.kept.values()] == [BLUE]
    after = given(f.TenantSet(tenant=RED), gone, kept(RED)).cluster
    assert after.kept == {}


def test_what_other_tenants_have_does_not_matter() -> None:
    others = (f.SecretSet(tenant=BLUE, name="s", version=1), notification(BLUE))
    assert removal(*others) == f.TenantSet(tenant=RED, removed=True, user="root")


def test_the_name_of_a_removed_tenant_is_not_used_again() -> None:
    removed = f.TenantSet(tenant=RED, removed=True)
    cluster = given(f.TenantSet(tenant=RED), f.TenantSet(tenant=BLUE), removed).cluster
    with pytest.raises(Problem, match=r"tenant red cannot be created: .*: choose another name"):
        intents.check_not_removed(cluster, RED)
    intents.check_not_removed(cluster, BLUE)
    intents.check_not_removed(cluster, "green")


def test_quota_rejects_a_submission_of_a_removed_tenant() -> None:
    world = World()
    world.say(f.TenantSet(tenant=TENANT, removed=True), submitted("a"))
    reason = "tenant default was removed: submit the job with a key of another tenant"
    assert world.record() == [f.JobRejected(job_id=job("a"), reason=reason)]
