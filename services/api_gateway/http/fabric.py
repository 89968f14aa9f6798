"""/v1/fabric: the measured fabric between nodes, and tests of it."""

import uuid

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
from services.api_gateway.intents import fabric_intents as intents
from services.api_gateway.problems import Problem
from services.api_gateway.views.fabric import fabric_shown, shown_test

router = APIRouter(tags=["nodes"])


@router.get("/v1/fabric", openapi_extra=documented(Query))
async def show_fabric(request: Request) -> Response:
    """Show measured pairs, nodes, suspect links, measured racks, and tests."""
    gateway, _ = await settled(request, Query)
    return answer(fabric_shown(gateway.cluster))


@router.post("/v1/fabric/tests", status_code=202, openapi_extra=documented(Query, intents.FIELDS))
async def test_fabric(request: Request) -> Response:
    """Measure the links between these nodes, or between all idle nodes."""
    gateway, body = gateway_without_query(request), await signed_body_of(request)
    test = f"test-{uuid.uuid4().hex[:12]}"
    await gateway.record(intents.requested_test(gateway.cluster, body, test))
    return answer(shown_test(gateway.cluster, test), 202)


@router.get("/v1/fabric/tests/{test}", openapi_extra=documented(Query))
async def show_test(request: Request, test: str) -> Response:
    """Show one test of the fabric."""
    gateway, _ = await settled(request, Query)
    shown = shown_test(gateway.cluster, test)
    if shown is None:
        raise Problem(
            404, f"fabric test {test[:64]!r} is not known: GET /v1/fabric lists the last tests"
        )
    return answer(shown)
