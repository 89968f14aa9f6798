"""/v1/watch: server-sent events of changes, for `top` and dashboards.

An event shows the job or node as it is when the event is sent, so a slow client misses intermediate
states but never the last one. `id` is a sequence. A client that continues after it (Last-Event-ID,
or `after`) first gets what changed since, or 410 if this gateway does not know all of it any more.
`views/deltas.py` makes the rows, also for `GET /v1/ws`.
"""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from services.api_gateway.access import roles
from services.api_gateway.channels.followers import Following, following
from services.api_gateway.http.queries import (
    Query,
    documented,
    last_event_id,
    principal_of,
    settled,
)
from services.api_gateway.http.routing import APIRouter
from services.api_gateway.problems import Problem
from services.api_gateway.views.deltas import Piece, Stream
from services.api_gateway.views.interests import Interest, JobFilter

EVERY_JOB: Final = JobFilter(elements=True)
_encode: Final = msgspec.json.Encoder().encode

router = APIRouter(tags=["log"])


class WatchQuery(Query, frozen=True):
    """The query of a watch.

    `after`: the sequence to continue from; 0 begins with all live jobs and all nodes.
    """

    after: int = 0


@router.get("/v1/watch", openapi_extra=documented(WatchQuery))
async def watch(request: Request) -> Response:
    """Stream the events `job`, `node` and `ready`, each with the object as JSON.

    The answer is 410 if too many jobs have ended since `after`, and the last event is `gone` if
    that happens to a client that reads slowly: begin anew without `after`.
    """
    gateway, query = await settled(request, WatchQuery)
    gateway.waiting.feeds.check_room()
    resumed = last_event_id(request)
    after = query.after if resumed is None else resumed
    principal = principal_of(request)
    interest = Interest(tenant=roles.eyes(principal), jobs=EVERY_JOB, nodes=True)
    stream = Stream(gateway, principal, interest, after)
    stream.check_after()
    frames = _events(stream, gateway.settings.keepalive_ms / 1_000)
    place = gateway.places.take(principal.tenant)
    return following(
        place,
        Following(frames, media_type="text/event-stream", headers={"cache-control": "no-store"}),
    )


async def _events(stream: Stream, idle_s: float) -> AsyncIterator[bytes]:
    """Yield the events. The last one is `gone` if the client read too slowly to miss nothing."""
    try:
        async with aclosing(stream.pieces(idle_s)) as pieces:
            async for piece in pieces:
                yield b": still here\n\n" if piece is None else _sent(piece)
    except Problem as problem:
        yield _event("gone", 0, _encode({"status": problem.status, "detail": problem.detail}))


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
