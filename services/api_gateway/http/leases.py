"""/v1/leases: how long a node may run jobs without hearing from the scheduler."""

from starlette.requests import Request
from starlette.responses import Response

from services.api_gateway.http.queries import (
    Query,
    answer,
    documented,
    gateway_without_query,
    settled,
    signed_body_of,
)
from services.api_gateway.http.routing import APIRouter
from services.api_gateway.intents import lease_intents as intents
from services.api_gateway.views.leases import leases_shown

router = APIRouter(tags=["nodes"])


@router.get("/v1/leases", openapi_extra=documented(Query))
async def show_leases(request: Request) -> Response:
    """Show the lease profile and its times."""
    gateway, _ = await settled(request, Query)
    return answer(leases_shown(gateway.cluster))


@router.post("/v1/leases", status_code=202, openapi_extra=documented(Query, intents.FIELDS))
async def set_leases(request: Request) -> Response:
    """Choose the lease profile: how soon a lost node is noticed."""
    gateway, body = gateway_without_query(request), await signed_body_of(request)
    fact = intents.chosen_profile(gateway.cluster, body)
    if fact is not None:
        await gateway.record(fact)
    return answer(leases_shown(gateway.cluster), 202)
