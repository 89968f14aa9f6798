"""Service state of devices: PUT of `service` for a device or for a whole node."""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from libs.common.facts import GatewayFact
from libs.common.state.cluster import GpuView, Node, node_gpus
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
from services.api_gateway.intents import device_intents, fabric_intents
from services.api_gateway.views.nodes import gpu_seen, node_full

router = APIRouter(tags=["nodes"])

_documented = documented(Query, device_intents.SERVICE_FIELDS)


@router.put("/v1/gpus/{uuid}/service", openapi_extra=_documented)
async def set_gpu_service(request: Request, uuid: str) -> Response:
    """Set a device online, draining (no new jobs) or offline (no jobs at all).

    Offline is refused while jobs hold the device, unless `force` is set.
    """
    view = known_gpu(gateway_without_query(request), uuid)
    await _set(request, [view])
    return answer(gpu_seen(principal_of(request), gateway_without_query(request).cluster, view))


@router.put("/v1/nodes/{node_id}/service", openapi_extra=_documented)
async def set_node_service(request: Request, node_id: str) -> Response:
    """Set the service state of all devices that the node has now."""
    gateway = gateway_without_query(request)
    node = known_node(gateway, node_id)
    await _set(request, list(node_gpus(gateway.cluster, node)), node)
    return answer(
        node_full(
            principal_of(request), gateway.cluster, node, gateway.pulse.heard_ns(node.node_id)
        )
    )


async def _set(request: Request, views: Sequence[GpuView], node: Node | None = None) -> None:
    gateway, body = gateway_without_query(request), await signed_body_of(request)
    facts: list[GatewayFact] = list(device_intents.service(body, views, gateway.cluster))
    if node is not None:
        facts += fabric_intents.drain_clearance(node, body)
    if facts:
        await gateway.record(*facts)
