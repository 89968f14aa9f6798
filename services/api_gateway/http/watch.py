"""/v1/watch: server-sent events of changes, for `top` and dashboards.

An event shows the job or node as it is when the event is sent, so a slow client misses intermediate
states but never the last one. `id` is a sequence. A client that continues after it (Last-Event-ID,
or `after`) first gets what changed since. `views/deltas.py` makes the rows, also for `GET /v1/ws`.
"""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from services.api_gateway.access import roles
from services.api_gateway.access.roles import Principal
from services.api_gateway.channels.followers import Following, following
from services.api_gateway.gateway import Gateway
from services.api_gateway.http.queries import (
    Query,
    documented,
    last_event_id,
    principal_of,
    settled,
)
from services.api_gateway.views.deltas import Piece, Stream
from services.api_gateway.views.interests import Interest, JobFilter

EVERY_JOB: Final = JobFilter(elements=True)

router = APIRouter(tags=["log"])


class WatchQuery(Query, frozen=True):
    """The query of a watch.

    `after`: the sequence to continue from; 0 begins with all live jobs and all nodes.
    """

    after: int = 0


@router.get("/v1/watch", openapi_extra=documented(WatchQuery))
async def watch(request: Request) -> Response:
    """Stream the events `job`, `node` and `ready`, each with the object as JSON."""
    gateway, query = await settled(request, WatchQuery)
    gateway.waiting.feeds.check_room()
    resumed = last_event_id(request)
    after = query.after if resumed is None else resumed
    principal = principal_of(request)
    frames = _events(gateway, after, principal)
    place = gateway.places.take(principal.tenant)
    return following(
        place,
        Following(frames, media_type="text/event-stream", headers={"cache-control": "no-store"}),
    )


async def _events(gateway: Gateway, after: int, principal: Principal) -> AsyncIterator[bytes]:
    interest = Interest(tenant=roles.eyes(principal), jobs=EVERY_JOB, nodes=True)
    stream = Stream(gateway, principal, interest, after)
    async with aclosing(stream.pieces(gateway.settings.keepalive_ms / 1_000)) as pieces:
        async for piece in pieces:
            yield b": still here\n\n" if piece is None else _sent(piece)


def _sent(piece: Piece) -> bytes:
    """Return the piece as events. Only a row after which nothing is missing has an id."""
    if piece.is_ready:
        return _event("ready", piece.seq, b'{"seq":%d}' % piece.seq)
    last = len(piece.rows) - 1
    return b"".join(
        _event(piece.kind, piece.seq if place == last else piece.before, row)
        for place, row in enumerate(piece.rows)
    )


def _event(kind: str, seq: int, row: bytes) -> bytes:
    name = b"id: %d\n" % seq if seq else b""
    return b"event: %s\n%sdata: %s\n\n" % (kind.encode(), name, row)
