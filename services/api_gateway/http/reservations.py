"""/v1/reservations: nodes that are reserved for tenants or users, or closed for maintenance."""

from starlette.requests import Request
from starlette.responses import Response

from services.api_gateway.http.queries import (
    MomentQuery,
    Query,
    answer,
    body_of,
    documented,
    gateway_without_query,
    principal_of,
    viewed,
)
from services.api_gateway.http.routing import APIRouter
from services.api_gateway.intents import reservation_intents as intents
from services.api_gateway.views.reservations import reservation_shown

router = APIRouter(tags=["nodes"])


@router.get("/v1/reservations", openapi_extra=documented(MomentQuery))
async def list_reservations(request: Request) -> Response:
    """List reservations and maintenances that are not over, by their start."""
    moment, _ = await viewed(request, MomentQuery)
    now_ns = moment.now_ns()
    known = sorted(
        moment.cluster.reservations.values(), key=lambda each: (each.start_ns, each.name)
    )
    shown = [
        reservation_shown(each, principal_of(request)) for each in known if now_ns < each.end_ns
    ]
    return answer({"reservations": shown, "next": None, "seq": moment.seq})


@router.put("/v1/reservations/{name}", openapi_extra=documented(Query, intents.FIELDS))
async def reserve(request: Request, name: str) -> Response:
    """Reserve nodes for tenants or users, or close them for maintenance, for some time.

    A reservation of the same name is replaced.
    """
    gateway = gateway_without_query(request)
    known = name in gateway.cluster.reservations
    user, now_ns = principal_of(request).user, gateway.clock.wall_ns()
    await gateway.record(
        intents.reservation(
            cluster=gateway.cluster,
            body=await body_of(request),
            name=name,
            user=user,
            now_ns=now_ns,
        )
    )
    return answer(
        reservation_shown(gateway.cluster.reservations[name], principal_of(request)),
        200 if known else 201,
    )


@router.delete("/v1/reservations/{name}", status_code=204, openapi_extra=documented(Query))
async def clear(request: Request, name: str) -> Response:
    """End a reservation or a maintenance, or cancel one that has not begun."""
    gateway = gateway_without_query(request)
    await gateway.record(intents.clearance(gateway.cluster, name, principal_of(request).user))
    return Response(status_code=204)
