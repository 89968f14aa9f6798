"""/v1/fleet: all nodes with their devices and holders, as a map shows them."""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from services.api_gateway.http.queries import (
    MomentPage,
    answer_page,
    documented,
    principal_of,
    viewed,
)
from services.api_gateway.http.routing import APIRouter
from services.api_gateway.views.fleet import fleet_row, is_on_map

# Nodes of many devices that are shown at once: other requests wait meanwhile.
SLICE_NODES: Final = 20

router = APIRouter(tags=["nodes"])


@router.get("/v1/fleet", openapi_extra=documented(MomentPage))
async def list_fleet(request: Request) -> Response:
    """List nodes with their devices and holders, in a compact form. Other tenants' jobs appear as
    their share only.
    """
    moment, query = await viewed(request, MomentPage)
    cluster, principal = moment.cluster, principal_of(request)
    return await answer_page(
        name="nodes",
        values=list(cluster.nodes.values()),
        query=query,
        seq=moment.seq,
        name_of=lambda node: node.node_id,
        show=lambda node: fleet_row(principal, cluster, node),
        wanted=is_on_map,
        slice_rows=SLICE_NODES,
    )
