"""/v1/secrets: a tenant's secrets by name.

A value is sent once, stored encrypted, and never shown again. It is stored under an id of its own,
and the fact that names this id makes it the secret's value. So no value changes without a fact.
Tests: tests/integration/test_secrets.py and test_secret_values.py.
"""

import logging
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from libs.common.errors import Corrupt, Unavailable
from libs.common.facts import SecretSet, size_of
from libs.common.folds.secret_fold import secret_key
from libs.common.state.cluster import Secret
from services.api_gateway.gateway import Gateway
from services.api_gateway.http.queries import (
    Query,
    answer,
    answer_list,
    body_of,
    documented,
    gateway_without_query,
    on_record,
    principal_of,
    settled,
)
from services.api_gateway.http.routing import APIRouter
from services.api_gateway.intents import secret_intents as intents
from services.api_gateway.intents.secret_intents import SecretShown
from services.api_gateway.problems import Problem
from services.api_gateway.times import rfc3339

# As long as the ids of values, for the check of the fact's size before the value is stored.
ID_LIKE: Final = "0-" + "0" * 16

logger = logging.getLogger(__name__)

router = APIRouter(tags=["secrets"])


@router.get("/v1/secrets", openapi_extra=documented(Query))
async def list_secrets(request: Request) -> Response:
    """List the names and versions of the own tenant's secrets."""
    gateway, _ = await settled(request, Query)
    own = sorted(
        (
            each
            for each in gateway.cluster.secrets.values()
            if each.tenant == principal_of(request).tenant
        ),
        key=lambda s: s.name,
    )
    shown = [SecretShown(each.name, each.version, rfc3339(each.set_ns), each.user) for each in own]
    return await answer_list("secrets", shown, {"seq": gateway.cluster.seq})


@router.put("/v1/secrets/{name}", openapi_extra=documented(Query, intents.SECRET_FIELDS))
async def set_secret(request: Request, name: str) -> Response:
    """Set a secret's value. Attempts that begin from now on get it."""
    gateway, principal = gateway_without_query(request), principal_of(request)
    fact, value = intents.setting(
        body=await body_of(request),
        cluster=gateway.cluster,
        tenant=principal.tenant,
        name=name,
        user=principal.user,
        value_id=ID_LIKE,
    )
    # Checked before the value is stored, so that refused requests do not fill the bucket.
    gateway.check_recordable(fact, size_of(fact))
    before = gateway.cluster.secrets.get(secret_key(fact.tenant, fact.name))
    value_id = await gateway.vault.add(
        fact.tenant,
        fact.name,
        value,
        current=before.value_id if before is not None else "",
        now_ns=gateway.clock.wall_ns(),
    )
    fact = msgspec.structs.replace(fact, value_id=value_id)
    # No attempt gets the value before its fact is recorded. If it is unclear whether the fact was
    # recorded, the value stays in the bucket.
    try:
        await on_record(request, fact, 201 if fact.version == 1 else 200)
    except Problem:
        await _forget(gateway, fact)
        raise
    if before is not None:
        await _forget(gateway, before)
    shown = SecretShown(fact.name, fact.version, rfc3339(gateway.clock.wall_ns()), fact.user)
    return answer(shown, 201 if fact.version == 1 else 200)


@router.delete("/v1/secrets/{name}", status_code=204, openapi_extra=documented(Query))
async def remove_secret(request: Request, name: str) -> Response:
    """Remove a secret. Attempts that begin from now on do not get it."""
    gateway, principal = gateway_without_query(request), principal_of(request)
    fact = intents.removal(gateway.cluster, principal.tenant, name, principal.user)
    before = gateway.cluster.secrets[secret_key(fact.tenant, fact.name)]
    await on_record(request, fact, 204)
    await _forget(gateway, before)
    return Response(status_code=204)


async def _forget(gateway: Gateway, secret: Secret | SecretSet) -> None:
    """Remove a value that no attempt gets any more. If that fails it stays, sealed."""
    try:
        await gateway.vault.remove(secret.tenant, secret.name, secret.value_id)
    except (Corrupt, Unavailable) as error:
        logger.warning(
            "an old value of the secret %s of %s stays in the bucket: %s",
            secret.name,
            secret.tenant,
            error,
        )
