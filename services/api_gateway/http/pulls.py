"""/v1/jobs/{ref}/pulls: how far the nodes of a job are with its image."""

import asyncio
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from libs.common.errors import Unavailable
from libs.common.life import job_life
from libs.common.messages.pull_messages import PullReport
from libs.common.messages.senders import readable
from libs.common.model import NodeId, attempt_key
from libs.common.subjects import ask_node
from services.api_gateway.access.slots import NODES
from services.api_gateway.gateway import Gateway
from services.api_gateway.http.queries import (
    Query,
    answer_list,
    documented,
    job_of,
    principal_of,
    settled,
)
from services.api_gateway.http.routing import APIRouter

# Nodes of a gang that are asked.
NODES_MAX: Final = 32

router = APIRouter(tags=["jobs"])

_report = msgspec.msgpack.Decoder(PullReport)


class PullShown(msgspec.Struct):
    """A node that pulls the job's image now: `progress` in words, or why the node does not say."""

    node_id: str
    progress: str


@router.get("/v1/jobs/{ref}/pulls", openapi_extra=documented(Query))
async def list_pulls(request: Request, ref: str) -> Response:
    """List the nodes that pull the job's image now, at most 32, and how far each is."""
    gateway, _ = await settled(request, Query)
    job = job_of(request, ref)
    nodes = [
        member.node_id
        for member in sorted(job.members.values(), key=lambda member: member.rank)
        if job.spec.image and member.state == job_life.PLACED
    ]
    key = attempt_key(job.job_id, job.attempt)
    async with gateway.slots.of(NODES, principal_of(request).tenant):
        found = await asyncio.gather(*(_asked(gateway, node, key) for node in nodes[:NODES_MAX]))
    rows = [PullShown(node, text) for node, text in zip(nodes, found, strict=False) if text]
    return await answer_list("pulls", rows, {"next": None, "seq": gateway.cluster.seq})


async def _asked(gateway: Gateway, node_id: NodeId, key: str) -> str:
    try:
        found = await gateway.bus.request(
            ask_node(node_id, "pulls"), b"", gateway.settings.ask_ms / 1_000
        )
        return readable(_report, found, node_id).progress.get(key, "")
    except Unavailable as error:
        return str(error)
