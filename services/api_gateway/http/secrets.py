"""/v1/secrets: a tenant's secrets by name.

A value is sent once, stored encrypted, and never shown again.
"""

from starlette.requests import Request
from starlette.responses import Response

from services.api_gateway.access import room
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
from services.api_gateway.times import rfc3339

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
    )
    gateway.check_room(
        "a secret", room.RECORDS
    )  # checked before the value is stored, so that there is no value without its fact
    await gateway.vault.put(fact.tenant, fact.name, value)
    await on_record(request, fact, 201 if fact.version == 1 else 200)
    shown = SecretShown(fact.name, fact.version, rfc3339(gateway.clock.wall_ns()), fact.user)
    return answer(shown, 201 if fact.version == 1 else 200)


@router.delete("/v1/secrets/{name}", status_code=204, openapi_extra=documented(Query))
async def remove_secret(request: Request, name: str) -> Response:
    """Remove a secret. Attempts that begin from now on do not get it."""
    gateway, principal = gateway_without_query(request), principal_of(request)
    await on_record(
        request, intents.removal(gateway.cluster, principal.tenant, name, principal.user), 204
    )
    await gateway.vault.remove(principal.tenant, name)
    return Response(status_code=204)
