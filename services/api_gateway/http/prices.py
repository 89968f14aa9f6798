"""/v1/prices: the price list; /v1/tenants/{name}/idle: what happens to jobs with idle GPUs."""

from starlette.requests import Request
from starlette.responses import Response

from libs.common.model import TenantId
from services.api_gateway.http.queries import (
    MomentQuery,
    Query,
    answer,
    body_of,
    documented,
    gateway_without_query,
    on_record,
    principal_of,
    viewed,
)
from services.api_gateway.http.routing import APIRouter
from services.api_gateway.http.tenants import tenant_of_request
from services.api_gateway.intents import price_intents as intents
from services.api_gateway.views.identity import tenant_shown
from services.api_gateway.views.prices import prices_shown

router = APIRouter(tags=["tenants"])


@router.get("/v1/prices", openapi_extra=documented(MomentQuery))
async def list_prices(request: Request) -> Response:
    """List the prices of GPUs, with the times in which they count."""
    moment, _ = await viewed(request, MomentQuery)
    return answer(prices_shown(moment.cluster))


@router.put("/v1/prices/{name}", openapi_extra=documented(Query, intents.PRICE_FIELDS))
async def set_price(request: Request, name: str) -> Response:
    """Set the price of GPUs whose model contains the words of the name, from now on."""
    gateway = gateway_without_query(request)
    user, body = principal_of(request).user, await body_of(request)
    await on_record(request, intents.price(gateway.cluster, body, name, user))
    return answer(prices_shown(gateway.cluster, name))


@router.delete("/v1/prices/{name}", status_code=204, openapi_extra=documented(Query))
async def remove_price(request: Request, name: str) -> Response:
    """Remove a price from now on. What was charged before keeps its cost."""
    gateway = gateway_without_query(request)
    user = principal_of(request).user
    await on_record(request, intents.price_removal(gateway.cluster, name, user), 204)
    return Response(status_code=204)


@router.put("/v1/tenants/{name}/idle", openapi_extra=documented(Query, intents.IDLE_FIELDS))
async def set_idle_policy(request: Request, name: str) -> Response:
    """Choose what happens to a tenant's jobs whose GPUs are all idle."""
    gateway, principal = gateway_without_query(request), principal_of(request)
    tenant_of_request(gateway.cluster, principal, name)
    fact = intents.idle_policy(await body_of(request), TenantId(name), principal.user)
    await on_record(request, fact)
    tenant = tenant_of_request(gateway.cluster, principal, name)
    return answer(tenant_shown(gateway.cluster, tenant))
