"""/v1/prune: remove the output of ended jobs from the nodes, by age and by size.

The answer counts per node what was removed.
"""

import asyncio
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from libs.common import subjects
from libs.common.errors import Unavailable
from libs.common.facts import UNDECODABLE
from libs.common.messages import PruneAsk, PruneDone
from libs.common.model import NodeId
from libs.common.state.cluster import is_removed
from libs.common.transport.uploads import Upload
from services.api_gateway.gateway import Gateway
from services.api_gateway.http.answer_types import NodePruned, PruneAnswer
from services.api_gateway.http.queries import Query, answer, body_of, documented, gateway_of, read
from services.api_gateway.http.routing import APIRouter
from services.api_gateway.http.upload_room import removed, uploads_in_use
from services.api_gateway.intents.prune_intents import (
    FIELDS,
    old_uploads,
    prune_request,
)

ASKED_AT_ONCE: Final = 32

router = APIRouter(tags=["nodes"])
_encode = msgspec.msgpack.Encoder().encode
_done = msgspec.msgpack.Decoder(PruneDone)


@router.post("/v1/prune", openapi_extra=documented(Query, FIELDS))
async def prune(request: Request) -> Response:
    """Remove old output of ended jobs from every node.

    Removes what ended longer than `older_than_s` ago, then the oldest until `keep_bytes` are left,
    and by the same bounds uploads that no active job uses.
    """
    read(request, Query)
    gateway, ask = gateway_of(request), prune_request(await body_of(request))
    at_once = asyncio.Semaphore(ASKED_AT_ONCE)
    nodes = [
        node_id for node_id in gateway.cluster.nodes if not is_removed(gateway.cluster, node_id)
    ]
    found = await asyncio.gather(*(_pruned(gateway, node_id, ask, at_once) for node_id in nodes))
    uploads = await _uploads(gateway, ask)
    jobs, size = sum(one.jobs for one in found), sum(one.size_bytes for one in found)
    return answer(
        PruneAnswer(
            nodes=found,
            jobs=jobs,
            size_bytes=size,
            uploads=len(uploads),
            uploads_bytes=sum(each.size_bytes for each in uploads),
            dry_run=ask.dry_run,
        )
    )


async def _uploads(gateway: Gateway, ask: PruneAsk) -> list[Upload]:
    """Remove old uploads (not with `dry_run`) and return them. Raises Unavailable."""
    listed = await gateway.uploads.listed()
    needed = await uploads_in_use(gateway)
    found = old_uploads(listed, needed, ask, gateway.clock.wall_ns())
    return [each for each in found if ask.dry_run or await removed(gateway, each, needed)]


async def _pruned(
    gateway: Gateway, node_id: NodeId, ask: PruneAsk, at_once: asyncio.Semaphore
) -> NodePruned:
    """Ask a node to prune. A node that does not answer may still prune, and counts as 0."""
    async with at_once:
        try:
            subject = subjects.ask_node(node_id, "prune")
            done = _done.decode(
                await gateway.bus.request(
                    subject, _encode(ask), gateway.settings.ask_past_ms / 1_000
                )
            )
        except Unavailable:
            done = PruneDone(error="does not answer")
        except UNDECODABLE as error:
            done = PruneDone(
                error=f"sent an answer that cannot be read ({error}): is its agent older?"
            )
    return NodePruned(
        node_id=node_id,
        jobs=done.jobs,
        size_bytes=done.size_bytes,
        jobs_left=done.jobs_left,
        bytes_left=done.bytes_left,
        uncopied=done.uncopied,
        error=done.error,
    )
