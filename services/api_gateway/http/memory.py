"""/v1/memory: the memory pools of jobs, by node and device, and what the nodes' brokers granted."""

import asyncio
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from libs.common.errors import Unavailable
from libs.common.messages.memory_messages import MemoryReport
from libs.common.messages.senders import readable
from libs.common.state.cluster import Node
from libs.common.subjects import ask_node
from services.api_gateway.access.slots import NODES
from services.api_gateway.gateway import Gateway
from services.api_gateway.http.nodes import known_node
from services.api_gateway.http.queries import (
    PageQuery,
    answer_list,
    documented,
    job_of,
    page_of,
    principal_of,
    settled,
)
from services.api_gateway.http.routing import APIRouter
from services.api_gateway.views.memory import ALL, NodeMemoryShown, node_memory, with_pools

ASKED_AT_ONCE: Final = 32
NODES_MAX: Final = 200

router = APIRouter(tags=["nodes"])

_report = msgspec.msgpack.Decoder(MemoryReport)


class MemoryQuery(PageQuery, frozen=True):
    """`node` or `job` limits the answer. Otherwise it has every node with a pool."""

    limit: int = NODES_MAX
    node: str = ""
    job: str = ""


@router.get("/v1/memory", openapi_extra=documented(MemoryQuery))
async def show_memory(request: Request) -> Response:
    """List memory pools by node: their sizes, and what is granted now.

    The nodes answer for themselves. Only operators and administrators see the pools of other
    tenants' jobs; others see their sums.
    """
    gateway, query = await settled(request, MemoryQuery)
    cluster, job_id = gateway.cluster, ALL
    nodes = [known_node(gateway, query.node)] if query.node else list(cluster.nodes.values())
    if query.job:
        job = job_of(request, query.job)
        job_id = job.job_id
        nodes = [node for node in nodes if node.node_id in job.members]
    page, following = page_of(
        nodes,
        lambda node: node.node_id,
        query,
        lambda node: bool(query.node) or bool(with_pools(cluster, node)),
    )
    at_once = asyncio.Semaphore(ASKED_AT_ONCE)

    async def shown(node: Node) -> NodeMemoryShown:
        async with at_once:
            report, error = await _asked(gateway, node)
        return node_memory(
            principal_of(request), cluster, node, report=report, error=error, only=job_id
        )

    async with gateway.slots.of(NODES, principal_of(request).tenant):
        rows = await asyncio.gather(*(shown(node) for node in page))
    return await answer_list("nodes", rows, {"next": following, "seq": cluster.seq})


async def _asked(gateway: Gateway, node: Node) -> tuple[MemoryReport | None, str]:
    """Return the node's report, or None and why there is none."""
    subject, within_s = ask_node(node.node_id, "memory"), gateway.settings.ask_ms / 1_000
    try:
        found = await gateway.bus.request(subject, b"", within_s)
        return readable(_report, found, node.node_id), ""
    except Unavailable as error:
        return None, str(error)
