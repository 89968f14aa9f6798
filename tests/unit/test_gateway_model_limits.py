"""Requests about the limits of tenants at a model: what is recorded, and what is refused."""

from typing import Any

import pytest

from libs.common import facts as f
from libs.common.errors import Refused
from libs.common.facts import ModelLimitsSet
from libs.common.model import TenantId
from libs.common.model_spec import ModelSpec
from libs.common.state.cluster import Cluster
from libs.common.state.rate_limits import RateLimits
from services.api_gateway.intents import model_limits
from services.api_gateway.intents.model_limits import LIMITED_MAX
from tests.history import History

OWNER = TenantId("physics")


def cluster() -> Cluster:
    history = History()
    history.say(
        f.TenantSet(tenant=OWNER),
        f.TenantSet(tenant=TenantId("biology")),
        f.ModelDeployed(name="chat", spec=ModelSpec(command=("serve",)), tenant=OWNER),
    )
    return history.cluster


def limited(tenant: str, body: Any, sees_all: bool = True) -> ModelLimitsSet:
    found = cluster()
    return model_limits.limits(found, found.models["chat"], tenant, body, sees_all)


@pytest.mark.parametrize("tenant", ["biology", "physics", "*"])
def test_limits_of_a_tenant_at_a_model_are_recorded(tenant: str) -> None:
    body = {"requests_per_minute": 60, "tokens_per_minute": 900, "user": "ada"}
    assert limited(tenant, body) == ModelLimitsSet(
        name="chat",
        guest=tenant,
        requests_per_minute=60,
        tokens_per_minute=900,
        user="ada",
        tenant=OWNER,
    )


def test_what_is_left_out_is_no_limit() -> None:
    assert limited("biology", None) == ModelLimitsSet(name="chat", guest="biology", tenant=OWNER)


@pytest.mark.parametrize(
    ("tenant", "body", "words"),
    [
        ("Biology!", {}, "is not valid"),
        ("geology", {}, "geology does not exist"),
        ("biology", {"requests_per_minute": -1}, "requests_per_minute"),
        ("biology", {"tokens_per_minute": "many"}, "tokens_per_minute"),
        ("biology", {"tokens": 1}, "tokens"),
    ],
)
def test_a_faulty_limit_is_refused_by_its_name(tenant: str, body: Any, words: str) -> None:
    with pytest.raises(Refused, match=words):
        limited(tenant, body)


def test_only_a_role_that_sees_all_tenants_learns_that_one_does_not_exist() -> None:
    assert limited("geology", {"requests_per_minute": 1}, sees_all=False).guest == "geology"


def test_a_model_has_limits_for_so_many_tenants() -> None:
    found = cluster()
    model = found.models["chat"]
    model.limits = {f"t-{number}": RateLimits(1) for number in range(LIMITED_MAX)}
    with pytest.raises(Refused, match=str(LIMITED_MAX)):
        model_limits.limits(found, model, "biology", {"requests_per_minute": 1}, sees_all=True)
    again = model_limits.limits(found, model, "t-1", {"requests_per_minute": 2}, sees_all=False)
    assert again.requests_per_minute == 2
