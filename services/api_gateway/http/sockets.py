"""/v1/ws over plain HTTP: the route is a WebSocket (`ws/serving.py`)."""

from starlette.requests import Request
from starlette.responses import Response

from services.api_gateway.http.queries import Query, documented, settled
from services.api_gateway.http.routing import APIRouter
from services.api_gateway.problems import Problem

router = APIRouter(tags=["log"])


@router.get("/v1/ws", openapi_extra=documented(Query))
async def follow(request: Request) -> Response:
    """Open a WebSocket with subscriptions to jobs, nodes, facts, output and counts, and with
    requests to models (docs/websocket.md).
    """
    await settled(request, Query)
    raise Problem(
        426,
        "this route is a WebSocket: send an upgrade request, or use GET /v1/watch and GET "
        "/v1/events, which are streams of server-sent events",
    )
