"""Requests about the limits of tenants at a model.

Pure. Tests: tests/unit/test_gateway_model_limits.py.
"""

from typing import Final

from libs.common.errors import Refused
from libs.common.facts import ModelLimitsSet
from libs.common.model import ID_PATTERN
from libs.common.state.cluster import Cluster, Model
from libs.common.state.rate_limits import EACH_GUEST
from services.api_gateway.intents import identity_intents, job_intents
from services.api_gateway.intents.fields import convert
from services.api_gateway.intents.identity_intents import LIMIT_FIELDS, LimitsBody

# A model may have as many guests, and its own tenant and "each guest" have limits too.
LIMITED_MAX: Final = 258
FIELDS: Final = (*LIMIT_FIELDS, "user")


def limits(
    cluster: Cluster, model: Model, tenant: str, body: object, sees_all: bool
) -> ModelLimitsSet:
    """Return the fact for `PUT /v1/deployments/{name}/limits/{tenant}`. Raises Refused.

    Only a principal that may see all tenants learns whether one exists.
    """
    values = job_intents.body_fields({} if body is None else body, FIELDS)
    user = job_intents.take_user(values)
    found = convert(values, LimitsBody)
    identity_intents.check_limits(found)
    _check_tenant(cluster, model, tenant, sees_all)
    if tenant not in model.limits and len(model.limits) >= LIMITED_MAX:
        raise Refused(
            f"tenant: model {model.name} has limits for {len(model.limits)} tenants: at most "
            f"{LIMITED_MAX} are accepted: end some, or use * for each guest"
        )
    return ModelLimitsSet(
        name=model.name,
        guest=tenant,
        requests_per_minute=found.requests_per_minute,
        tokens_per_minute=found.tokens_per_minute,
        user=user,
        tenant=model.tenant,
    )


def _check_tenant(cluster: Cluster, model: Model, tenant: str, sees_all: bool) -> None:
    if tenant in (EACH_GUEST, model.tenant):
        return
    if not ID_PATTERN.fullmatch(tenant):
        raise Refused(
            f"tenant: {tenant[:64]!r} is not valid: give the name of a tenant (small letters, "
            "digits and -), or * for each guest"
        )
    if sees_all and identity_intents.known_tenant(cluster, tenant) is None:
        raise Refused(f"tenant: {tenant} does not exist: `muster tenant list` lists them")
