"""/v1/access: who asked for what, and whether they might; read out of the log, where the audit's
chain holds it too.
"""

from collections.abc import Iterator
from contextlib import aclosing

from fastapi import APIRouter, Request
from starlette.responses import Response

from libs.common import facts as f
from libs.common import reading, subjects
from libs.common.errors import Corrupt
from libs.common.messages import access_entry
from libs.common.messages.access_entry import AccessEntry
from libs.common.transport.log import Entry
from services.api_gateway.gateway import Gateway
from services.api_gateway.http.events import EVENTS_MAX, SCAN_MAX
from services.api_gateway.http.queries import Query, answer, documented, settled
from services.api_gateway.intents.fields import check_range
from services.api_gateway.times import instant_ns
from services.api_gateway.views.identity import AccessShown, access_shown

router = APIRouter(tags=["log"])


class AccessQuery(Query, frozen=True):
    """`last` begins that many commits before the end.

    `route` is a template's beginning; `denied` leaves out what was allowed.
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
    """Entries in order; those of a batch stay together.

    `dropped` is how many could not be kept, by the batches looked at.
    """
    gateway, query = await settled(request, AccessQuery)
    check_range("limit", query.limit, 1, EVENTS_MAX)
    check_range("after", query.after, 0, 1 << 62)
    wanted = _Wanted(query, gateway.clock.wall_ns())
    after = max(query.after, gateway.cluster.seq - query.last if query.last > 0 else 0)
    rows, cursor = await _page(gateway, wanted, after, query.limit)
    seq = gateway.cluster.seq
    return answer(
        {
            "access": rows,
            "dropped": wanted.dropped,
            "next": cursor,
            "more": cursor < seq,
            "seq": seq,
        }
    )


async def _page(
    gateway: Gateway, wanted: "_Wanted", after: int, limit: int
) -> tuple[list[AccessShown], int]:
    upto = min(gateway.cluster.seq, after + SCAN_MAX)
    rows: list[AccessShown] = []
    async with aclosing(gateway.entries.scan(after, upto)) as slices:
        async for piece in slices:
            for entry in piece:
                rows += wanted.rows(entry)
                after = entry.seq
                if len(rows) >= limit:
                    return rows, after
    return rows, max(after, upto)


class _Wanted:
    """Which entries are asked for. Raises Refused naming a parameter that makes no sense."""

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
            if self._wants(each)
        ]

    def _entries(self, fact: f.AccessRecorded) -> Iterator[AccessEntry]:
        """A batch that cannot be read is none: one broken gateway stops no reader."""
        self.dropped += fact.dropped
        try:
            yield from access_entry.unpack(fact.entries)
        except Corrupt:
            return

    def _wants(self, entry: AccessEntry) -> bool:
        query = self.query
        return (
            self.since_ns <= entry.at_ns <= self.until_ns
            and query.tenant in ("", entry.tenant)
            and query.user in ("", entry.user)
            and query.key in ("", entry.key_id)
            and entry.route.startswith(query.route)
            and bool(entry.denied or not query.denied)
        )
