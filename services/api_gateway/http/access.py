"""/v1/access: the recorded requests, read from the log.

The same records are in the audit's archive and its chain.
"""

from collections.abc import Iterator
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import Response

from libs.common import facts as f
from libs.common import reading, subjects
from libs.common.errors import Corrupt
from libs.common.messages import access_entry
from libs.common.messages.access_entry import AccessEntry
from libs.common.transport.log import Entry
from services.api_gateway.access.slots import SCAN
from services.api_gateway.gateway import Gateway
from services.api_gateway.http.events import EVENTS_MAX, SCAN_MAX
from services.api_gateway.http.queries import Query, answer, documented, principal_of, settled
from services.api_gateway.http.routing import APIRouter
from services.api_gateway.intents.fields import check_range
from services.api_gateway.times import instant_ns
from services.api_gateway.views.identity import AccessShown, access_shown

router = APIRouter(tags=["log"])


class AccessQuery(Query, frozen=True):
    """Filters of access records.

    `last`: begin that many commits before the end of the log. `route`: the beginning of a route's
    template. `denied`: only requests that were denied.
    """

    since: str = ""
    until: str = ""
    tenant: str = ""
    user: str = ""
    key: str = ""
    route: str = ""
    denied: bool = False
    after: int = 0
    last: int = 0
    limit: int = 200


@router.get("/v1/access", openapi_extra=documented(AccessQuery))
async def access(request: Request) -> Response:
    """List access records in order.

    `dropped` is the number of requests that could not be recorded in the commits that were read.
    """
    gateway, query = await settled(request, AccessQuery)
    check_range("limit", query.limit, 1, EVENTS_MAX)
    check_range("after", query.after, 0, 1 << 62)
    access_filter = _AccessFilter(query, gateway.clock.wall_ns())
    after = max(query.after, gateway.cluster.seq - query.last if query.last > 0 else 0)
    async with gateway.slots.of(SCAN, principal_of(request).tenant):
        rows, cursor = await _page(gateway, access_filter, after, query.limit)
    seq = gateway.cluster.seq
    return answer(
        {
            "access": rows,
            "dropped": access_filter.dropped,
            "next": cursor,
            "more": cursor < seq,
            "seq": seq,
        }
    )


async def _page(
    gateway: Gateway, access_filter: "_AccessFilter", after: int, limit: int
) -> tuple[list[AccessShown], int]:
    upto = min(gateway.cluster.seq, after + SCAN_MAX)
    rows: list[AccessShown] = []
    async with aclosing(gateway.entries.scan(after, upto)) as slices:
        async for piece in slices:
            for entry in piece:
                rows += access_filter.rows(entry)
                after = entry.seq
                if len(rows) >= limit:
                    return rows, after
    return rows, max(after, upto)


class _AccessFilter:
    """The filter of access records. Raises Refused naming the parameter that is not valid."""

    def __init__(self, query: AccessQuery, now_ns: int) -> None:
        self.query = query
        self.since_ns = instant_ns(query.since, "since", now_ns)
        self.until_ns = instant_ns(query.until, "until", now_ns) or 1 << 63
        self.dropped = 0

    def rows(self, entry: Entry) -> list[AccessShown]:
        if subjects.writer_kind(entry.subject) != subjects.GATEWAY_KIND:
            return []
        gateway = subjects.node_of(entry.subject)
        facts = [
            fact
            for fact in reading.read_alone(entry.subject, entry.data).facts
            if isinstance(fact, f.AccessRecorded)
        ]
        return [
            access_shown(entry.seq, gateway, each)
            for fact in facts
            for each in self._entries(fact)
            if self._matches(each)
        ]

    def _entries(self, fact: f.AccessRecorded) -> Iterator[AccessEntry]:
        """Yield a batch's entries. A damaged batch has none, so that it stops no reader."""
        self.dropped += fact.dropped
        try:
            yield from access_entry.unpack(fact.entries)
        except Corrupt:
            return

    def _matches(self, entry: AccessEntry) -> bool:
        query = self.query
        return (
            self.since_ns <= entry.at_ns <= self.until_ns
            and query.tenant in ("", entry.tenant)
            and query.user in ("", entry.user)
            and query.key in ("", entry.key_id)
            and entry.route.startswith(query.route)
            and bool(entry.denied or not query.denied)
        )
