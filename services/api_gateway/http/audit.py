"""/v1/audit: the archive's events for consumers outside (CloudEvents 1.0), and the newest signed
head of its chain; audit answers both.

A consumer keeps the id of the last event that it has handled, and comes back with it; nothing is
lost or sent twice. `follow` is one connection: a client that polls makes an access record, and so
an event, each time.
"""

from collections.abc import AsyncIterator
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from libs.common.errors import Unavailable
from libs.common.transport import archive
from services.api_gateway.gateway import Gateway
from services.api_gateway.http.queries import Query, documented, settled
from services.api_gateway.intents.fields import check_range
from services.api_gateway.problems import Problem

BATCH_TYPE: Final = "application/cloudevents-batch+json"
EVENTS_MAX: Final = 1_000
# Each is a question that waits at audit, which answers 64 at once.
FOLLOWERS_MAX: Final = 16
FOLLOW_WAIT_S: Final = 10.0

router = APIRouter(tags=["log"])


class AuditQuery(Query, frozen=True):
    """`after` is an event's id, or a sequence; empty begins with the first event.

    With `follow` the header Last-Event-ID goes before it.
    """

    after: str = ""
    limit: int = 200
    follow: bool = False


@router.get("/v1/audit/events", openapi_extra=documented(AuditQuery))
async def audit_events(request: Request) -> Response:
    """A batch of CloudEvents, in order: none when there are none behind `after`.

    With `follow` server-sent events, as they come.
    """
    gateway, query = await settled(request, AuditQuery)
    check_range("limit", query.limit, 1, EVENTS_MAX)
    after = (query.follow and request.headers.get("last-event-id")) or query.after
    found = await archive.events(gateway.bus, after, query.limit)
    if not query.follow:
        body = b"[" + b",".join(data for _, data in found.events) + b"]"
        return Response(body, media_type=BATCH_TYPE, headers={"x-muster-next": found.upto})
    if gateway.followers >= FOLLOWERS_MAX:
        raise Problem(
            503,
            f"{FOLLOWERS_MAX} clients follow the audit already: close one, or ask another gateway",
        )
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(
        _followed(gateway, found, query.limit), media_type="text/event-stream", headers=headers
    )


async def _followed(
    gateway: Gateway, found: archive.EventsPage, limit: int
) -> AsyncIterator[bytes]:
    """A comment now and then keeps the connection; when audit does not answer the stream ends, and
    the client comes back.
    """
    gateway.followers += 1
    try:
        while True:
            yield (
                b"".join(
                    b"id: %s\ndata: %s\n\n" % (name.encode(), data) for name, data in found.events
                )
                or b": still here\n\n"
            )
            found = await archive.events(gateway.bus, found.upto, limit, FOLLOW_WAIT_S)
    except Unavailable:
        return
    finally:
        gateway.followers -= 1


@router.get("/v1/audit/head", openapi_extra=documented(Query))
async def audit_head(request: Request) -> Response:
    """The newest head: cluster, sequence, hash, time, the signer's public key, the signature."""
    gateway, _ = await settled(request, Query)
    head = await archive.head(gateway.bus)
    if not head:
        raise Problem(
            404,
            (
                "no head of the audit chain was signed yet: set MUSTER_AUDIT_KEY_FILE for the "
                "audit service, and wait a moment"
            ),
        )
    return Response(head, media_type="application/json")
