"""/v1/bus: the servers of the log, and orders to restart one or to empty its store."""

from starlette.requests import Request
from starlette.responses import Response

from libs.common.messages.server_messages import REPLACE, RESTART
from services.api_gateway.agents.log_servers import ask_all, order, set_replicas
from services.api_gateway.http.queries import (
    Query,
    answer,
    documented,
    gateway_without_query,
    settled,
)
from services.api_gateway.http.routing import APIRouter
from services.api_gateway.views.log_servers import bus_shown

router = APIRouter(tags=["cluster"])


@router.get("/v1/bus", openapi_extra=documented(Query))
async def show_bus(request: Request) -> Response:
    """Show the servers of the log, their replicas, and what is not as it should be."""
    gateway, _ = await settled(request, Query)
    return answer(bus_shown(await ask_all(gateway.bus, gateway.admission.heard)))


@router.post("/v1/bus/{server}/restart", status_code=202, openapi_extra=documented(Query))
async def restart_server(request: Request, server: str) -> Response:
    """Restart a server of the log. Refused with 409 unless all others are healthy."""
    return await _order(request, server, RESTART)


@router.post("/v1/bus/{server}/replace", status_code=202, openapi_extra=documented(Query))
async def replace_server(request: Request, server: str) -> Response:
    """Start a server of the log with an empty store, which the others fill.

    Refused with 409 unless all others are healthy and its disk has space for a second store.
    """
    return await _order(request, server, REPLACE)


@router.post("/v1/bus/replicas/{count}", status_code=202, openapi_extra=documented(Query))
async def set_bus_replicas(request: Request, count: str) -> Response:
    """Store every stream on 3 or 5 servers. Refused with 409 unless so many are healthy."""
    gateway = gateway_without_query(request)
    return answer(await set_replicas(gateway.bus, gateway.admission.heard, count), 202)


async def _order(request: Request, server: str, verb: str) -> Response:
    gateway = gateway_without_query(request)
    return answer(await order(gateway.bus, gateway.admission.heard, server, verb), 202)
