"""Device controls: PUT of one control of a device, or of all devices of a node."""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from libs.common.state.cluster import GpuView, node_gpus
from services.api_gateway.http.nodes import known_gpu, known_node
from services.api_gateway.http.queries import (
    Query,
    answer,
    documented,
    gateway_without_query,
    principal_of,
    signed_body_of,
)
from services.api_gateway.http.routing import APIRouter
from services.api_gateway.intents import control_intents
from services.api_gateway.views.nodes import gpu_seen, node_full

router = APIRouter(tags=["nodes"])

_documented = documented(Query, control_intents.CONTROL_FIELDS)


@router.put("/v1/gpus/{uuid}/controls/{control}", status_code=202, openapi_extra=_documented)
async def control_gpu(request: Request, uuid: str, control: str) -> Response:
    """Change a device's power limit, clocks or modes, or reset it.

    The device's `controls` show the outcome.
    """
    view = known_gpu(gateway_without_query(request), uuid)
    await _ask(request, control, [view])
    return answer(
        gpu_seen(principal_of(request), gateway_without_query(request).cluster, view), 202
    )


@router.put("/v1/nodes/{node_id}/controls/{control}", status_code=202, openapi_extra=_documented)
async def control_node(request: Request, node_id: str, control: str) -> Response:
    """Change a control of all devices that the node has now."""
    gateway = gateway_without_query(request)
    node = known_node(gateway, node_id)
    await _ask(request, control, list(node_gpus(gateway.cluster, node)))
    return answer(
        node_full(
            principal_of(request), gateway.cluster, node, gateway.pulse.heard_ns(node.node_id)
        ),
        202,
    )


async def _ask(request: Request, control: str, views: Sequence[GpuView]) -> None:
    gateway, body = gateway_without_query(request), await signed_body_of(request)
    facts = control_intents.control(body, control, views, gateway.cluster)
    if facts:
        await gateway.record(*facts)
