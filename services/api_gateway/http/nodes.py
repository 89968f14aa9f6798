"""/v1/nodes, /v1/gpus, /v1/inventory and /v1/cluster: nodes, devices, their state and their
topology.
"""

from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from libs.common.devices.topology import Topology
from libs.common.life import gpu_life, node_life
from libs.common.messages.senders import readable
from libs.common.model import GpuId, NodeId
from libs.common.state.cluster import GpuView, Node, is_removed
from libs.common.subjects import ask_node
from services.api_gateway.access.slots import NODE
from services.api_gateway.gateway import Gateway
from services.api_gateway.http.jobs import ask_scheduler
from services.api_gateway.http.queries import (
    MomentPage,
    MomentQuery,
    Query,
    answer,
    answer_page,
    documented,
    gateway_without_query,
    principal_of,
    settled,
    signed_body_of,
    viewed,
)
from services.api_gateway.http.routing import APIRouter
from services.api_gateway.intents import job_intents
from services.api_gateway.intents.fields import check_one_of
from services.api_gateway.moments.moment import Moment
from services.api_gateway.problems import Problem
from services.api_gateway.views.nodes import (
    NodeShown,
    cluster_shown,
    gpu_seen,
    gpu_state,
    node_full,
    node_seen,
)

router = APIRouter(tags=["nodes"])

_topology = msgspec.msgpack.Decoder(Topology)


class NodesQuery(MomentPage, frozen=True):
    state: str = ""


class GpusQuery(MomentPage, frozen=True):
    node: str = ""
    state: str = ""


class InventoryQuery(Query, frozen=True):
    """The query of an inventory. `after` is the last answer's `next`."""

    after: str = ""


@router.get("/v1/nodes", openapi_extra=documented(NodesQuery))
async def list_nodes(request: Request) -> Response:
    """List nodes without their devices; removed nodes only if `state` asks for them."""
    moment, query = await viewed(request, NodesQuery)
    if query.state:
        check_one_of("state", query.state, node_life.STATES)
    cluster, principal = moment.cluster, principal_of(request)

    def wanted(node: Node) -> bool:
        return query.state == node.state or (not query.state and node.state != node_life.REMOVED)

    def shown(node: Node) -> NodeShown:
        heard_ns, unheard = moment.heard_ns(node.node_id), moment.is_unheard(node.node_id)
        return node_seen(principal, cluster, node, heard_ns, unheard)

    return await answer_page(
        name="nodes",
        values=list(cluster.nodes.values()),
        query=query,
        seq=cluster.seq,
        name_of=lambda node: node.node_id,
        show=shown,
        wanted=wanted,
    )


@router.get("/v1/nodes/{node_id}", openapi_extra=documented(MomentQuery))
async def show_node(request: Request, node_id: str) -> Response:
    """Show one node with its devices."""
    moment, _ = await viewed(request, MomentQuery)
    node = known_node(moment, node_id)
    heard_ns, unheard = moment.heard_ns(node.node_id), moment.is_unheard(node.node_id)
    return answer(node_full(principal_of(request), moment.cluster, node, heard_ns, unheard))


def known_node(state: Gateway | Moment, node_id: str) -> Node:
    node = state.cluster.nodes.get(NodeId(node_id))
    if node is None:
        raise Problem(
            404,
            f"node {node_id[:64]!r} has not registered: "
            "list the nodes with `muster nodes` (GET /v1/nodes)",
        )
    return node


@router.get("/v1/nodes/{node_id}/topology", openapi_extra=documented(Query))
async def show_topology(request: Request, node_id: str) -> Response:
    """Return how a node's GPUs and network cards are connected, as the node reports now."""
    gateway, _ = await settled(request, Query)
    node = known_node(gateway, node_id)
    async with gateway.slots.of(NODE, principal_of(request).tenant):
        found = await gateway.bus.request(
            ask_node(node.node_id, "topology"), b"", gateway.settings.ask_ms / 1_000
        )
    return answer(readable(_topology, found, node.node_id))


@router.post(
    "/v1/nodes/{node_id}/dead",
    status_code=202,
    openapi_extra=documented(Query, job_intents.DEAD_FIELDS),
)
async def declare_dead(request: Request, node_id: str) -> Response:
    """Declare that nothing runs any more on a node that is lost or silent.

    All its jobs are given up there and may start elsewhere, also those that may run without a
    lease.
    """
    gateway, body = gateway_without_query(request), await signed_body_of(request)
    node = known_node(gateway, node_id)
    if node.usable and not gateway.pulse.is_unheard(node.node_id):
        text = (
            f"node {node.node_id} is {node.state}, and only a lost or silent node can be "
            "declared dead: cancel its jobs, or wait until `muster nodes` (GET /v1/nodes) shows "
            "it as unreachable or silent"
        )
        raise Problem(409, text, state=node.state)
    fact = job_intents.death_declaration(body, node)
    if fact is not None:
        await gateway.record(fact)
    return answer(
        node_seen(
            principal_of(request), gateway.cluster, node, gateway.pulse.heard_ns(node.node_id)
        ),
        202,
    )


@router.get("/v1/gpus", openapi_extra=documented(GpusQuery))
async def list_gpus(request: Request) -> Response:
    """List devices and their holders."""
    moment, query = await viewed(request, GpusQuery)
    cluster, principal, state = moment.cluster, principal_of(request), query.state.upper()
    if state:
        check_one_of("state", state, gpu_life.STATES)

    def wanted(view: GpuView) -> bool:
        there = query.node in ("", view.node_id) and not is_removed(cluster, view.node_id)
        return there and state in ("", gpu_state(cluster, view))

    views = list(cluster.gpus.values())
    return await answer_page(
        name="gpus",
        values=views,
        query=query,
        seq=cluster.seq,
        name_of=lambda view: view.gpu.uuid,
        show=partial(gpu_seen, principal, cluster),
        wanted=wanted,
    )


@router.get("/v1/gpus/{uuid}", openapi_extra=documented(MomentQuery))
async def show_gpu(request: Request, uuid: str) -> Response:
    """Show one device: its health, its last errors and its holders."""
    moment, _ = await viewed(request, MomentQuery)
    return answer(gpu_seen(principal_of(request), moment.cluster, known_gpu(moment, uuid)))


def known_gpu(state: Gateway | Moment, uuid: str) -> GpuView:
    view = state.cluster.gpus.get(GpuId(uuid))
    if view is None or is_removed(state.cluster, view.node_id):
        raise Problem(
            404,
            f"GPU {uuid[:64]!r} does not exist: list the GPUs with `muster gpus` (GET /v1/gpus)",
        )
    return view


@router.get("/v1/inventory", openapi_extra=documented(InventoryQuery))
async def show_inventory(request: Request) -> Response:
    """Return the free share of every node's devices, from the scheduler.

    About 10,000 devices come in one answer.
    """
    gateway, query = await settled(request, InventoryQuery)
    after = known_node(gateway, query.after).node_id if query.after else ""
    return await ask_scheduler(gateway, "inventory", after.encode())


@router.get("/v1/cluster", openapi_extra=documented(MomentQuery))
async def show_cluster(request: Request) -> Response:
    """Return the numbers of jobs, nodes and devices, the scheduler's term, and the timing."""
    moment, _ = await viewed(request, MomentQuery)
    return answer(await cluster_shown(moment.cluster, moment.index.counts, moment.pulse))
