"""/v1/audit: the archive's events in CloudEvents 1.0, and the newest signed head of its chain.

The audit service answers both. A consumer keeps the id of the last event that it has handled and
continues after it, so no event is lost or sent twice. With `follow` a consumer stays on one
connection; polling would create an access record, and so an event, with each request.
"""

from collections.abc import AsyncIterator
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from libs.common.errors import Refused, Unavailable
from libs.common.transport import archive
from services.api_gateway.channels.followers import Following, following
from services.api_gateway.gateway import Gateway
from services.api_gateway.http.queries import Query, documented, principal_of, settled
from services.api_gateway.http.routing import APIRouter
from services.api_gateway.intents.fields import check_range
from services.api_gateway.problems import Problem

BATCH_TYPE: Final = "application/cloudevents-batch+json"
EVENTS_MAX: Final = 1_000
# Each follower is a question that waits at audit, which answers 64 at once.
FOLLOWERS_MAX: Final = 16
FOLLOW_WAIT_S: Final = 10.0

router = APIRouter(tags=["log"])


class AuditQuery(Query, frozen=True):
    """The query of the event stream.

    `after`: an event's id or a sequence; empty begins with the first event.

    With `follow` the header Last-Event-ID replaces `after`.
    """

    after: str = ""
    limit: int = 200
    follow: bool = False


@router.get("/v1/audit/events", openapi_extra=documented(AuditQuery))
async def audit_events(request: Request) -> Response:
    """Return a batch of CloudEvents after `after`, in order; with `follow` server-sent events."""
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
            f"{FOLLOWERS_MAX} clients follow the audit at this gateway, the maximum: close one, or "
            "use another gateway",
        )
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    place = gateway.places.take(principal_of(request).tenant)
    frames = _followed(gateway, found, query.limit)
    return following(place, Following(frames, media_type="text/event-stream", headers=headers))


async def _followed(
    gateway: Gateway, found: archive.EventsPage, limit: int
) -> AsyncIterator[bytes]:
    """Stream events. Comments keep an idle connection open.

    If audit does not answer or refuses the place, the stream ends, and the client connects again.
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
    except (Refused, Unavailable):
        return
    finally:
        gateway.followers -= 1


@router.get("/v1/audit/head", openapi_extra=documented(Query))
async def audit_head(request: Request) -> Response:
    """Return the newest signed head: cluster, sequence, hash, time, public key, signature."""
    gateway, _ = await settled(request, Query)
    head = await archive.head(gateway.bus)
    if not head:
        raise Problem(
            404,
            (
                "the audit chain has no signed head yet: check that MUSTER_AUDIT_KEY_FILE is set "
                "for the audit service, and try again in a minute"
            ),
        )
    return Response(head, media_type="application/json")
