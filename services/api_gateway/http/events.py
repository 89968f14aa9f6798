"""/v1/events: the facts of the log; /v1/state: the cluster's state after any past commit."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from libs.common.errors import Refused
from services.api_gateway.access.roles import Principal
from services.api_gateway.access.slots import SCAN
from services.api_gateway.channels.followers import Following, following
from services.api_gateway.gateway import Gateway
from services.api_gateway.http.queries import (
    UNBUFFERED,
    Query,
    answer,
    documented,
    last_event_id,
    principal_of,
    settled,
)
from services.api_gateway.http.routing import APIRouter
from services.api_gateway.intents.fields import check_range
from services.api_gateway.times import instant_ns
from services.api_gateway.views.fact_stream import FactFilter, FactSent, fact_groups
from services.api_gateway.views.past import fold_to, state_lines

# One request reads at most this many commits; `next` continues after them.
SCAN_MAX: Final = 20_000
EVENTS_MAX: Final = 1_000
# `last` reads at most LAST_SCAN_MAX commits, in slices: most commits may be access records, which
# are not shown.
LAST_SCAN_MAX: Final = 100_000
LAST_SLICE: Final = 1_000

router = APIRouter(tags=["log"])

_past = asyncio.Semaphore(1)


class EventsQuery(Query, frozen=True):
    """Filters of facts.

    `last`: begin so that at least this many matching facts follow. `kind`: one or several kinds,
    separated by commas; a kind that ends in `.` means its whole family. Access records are shown
    only if `kind` names them.
    """

    job: str = ""
    node: str = ""
    kind: str = ""
    since: str = ""
    until: str = ""
    after: int = 0
    last: int = 0
    limit: int = 200
    follow: bool = False


class StateQuery(Query, frozen=True):
    at: int = 0


@router.get("/v1/events", openapi_extra=documented(EventsQuery))
async def events(request: Request) -> Response:
    """List facts in order.

    With `follow` the answer stays open, with one JSON fact a line. With `Accept: text/event-stream`
    it is a stream of server-sent events, which begins now, or after `after`, `last` or the header
    Last-Event-ID.
    """
    gateway, query = await settled(request, EventsQuery)
    check_range("limit", query.limit, 1, EVENTS_MAX)
    principal = principal_of(request)
    job_id = (await gateway.lookup.job_seqs(query.job, principal))[0] if query.job else ""
    fact_filter = fact_filter_of(gateway, query, principal, job_id)
    async with gateway.slots.of(SCAN, principal.tenant):
        after = max(query.after, await _commit_before_last(gateway, fact_filter, query.last))
    if "text/event-stream" in request.headers.get("accept", ""):
        resumed = last_event_id(request)
        begin = (
            after
            if resumed is None and (query.after or query.last)
            else gateway.cluster.seq
            if resumed is None
            else resumed
        )
        place = gateway.places.take(principal.tenant, job_id)
        return following(
            place,
            Following(
                _served(gateway, fact_filter, begin),
                media_type="text/event-stream",
                headers=UNBUFFERED,
            ),
        )
    if query.follow:
        place = gateway.places.take(principal.tenant, job_id)
        return following(
            place,
            Following(_followed(gateway, fact_filter, after), media_type="application/x-ndjson"),
        )
    upto = min(gateway.cluster.seq, max(0, after) + SCAN_MAX)
    async with gateway.slots.of(SCAN, principal.tenant):
        rows, cursor = await _page(gateway, fact_filter, after=after, upto=upto, limit=query.limit)
    return answer(
        {
            "events": rows,
            "next": cursor,
            "more": cursor < gateway.cluster.seq,
            "seq": gateway.cluster.seq,
        }
    )


def fact_filter_of(
    gateway: Gateway, query: EventsQuery, principal: Principal, job_id: str
) -> FactFilter:
    """Return the filter of a query. Raises Refused naming the parameter that is not valid."""
    now_ns = gateway.clock.wall_ns()
    check_range("after", query.after, 0, 1 << 62)
    return FactFilter(
        cluster=gateway.cluster,
        principal=principal,
        kinds=query.kind,
        job_id=job_id,
        node_id=query.node,
        since_ns=instant_ns(query.since, "since", now_ns),
        until_ns=instant_ns(query.until, "until", now_ns),
    )


async def _commit_before_last(gateway: Gateway, fact_filter: FactFilter, count: int) -> int:
    """Return the commit after which the last `count` matching facts follow; 0 if `count` is 0."""
    before, left = gateway.cluster.seq, count
    oldest = max(0, before - LAST_SCAN_MAX)
    while left > 0 and before > oldest:
        after = max(oldest, before - LAST_SLICE)
        async with aclosing(gateway.entries.scan(after, before)) as slices:
            shown = [
                (entry.seq, len(fact_filter.rows(entry)))
                async for piece in slices
                for entry in piece
            ]
        for seq, rows in reversed(shown):
            left -= rows
            if left <= 0:
                return seq - 1
        before = after
    return before if count > 0 else 0


async def _page(
    gateway: Gateway, fact_filter: FactFilter, after: int, upto: int, limit: int
) -> tuple[list[dict[str, object]], int]:
    """Return rows and the last commit that was read. The facts of a commit stay together."""
    rows: list[dict[str, object]] = []
    async with aclosing(gateway.entries.scan(after, upto)) as slices:
        async for piece in slices:
            for entry in piece:
                rows += fact_filter.rows(entry)
                after = entry.seq
                if len(rows) >= limit:
                    return rows, after
    return rows, max(after, min(upto, gateway.cluster.seq))


async def _followed(gateway: Gateway, fact_filter: FactFilter, after: int) -> AsyncIterator[bytes]:
    """Stream rows as lines. Empty lines keep an idle connection open."""
    async with aclosing(fact_groups(gateway, fact_filter, after, _idle_s(gateway))) as groups:
        async for facts in groups:
            yield b"".join(fact.row + b"\n" for fact in facts) or b"\n"


async def _served(gateway: Gateway, fact_filter: FactFilter, after: int) -> AsyncIterator[bytes]:
    """Stream rows as server-sent events.

    Only a commit's last fact carries its sequence as the id, so that a client that continues after
    this id misses no fact.
    """
    async with aclosing(fact_groups(gateway, fact_filter, after, _idle_s(gateway))) as groups:
        async for facts in groups:
            yield b"".join(map(_event, facts)) or b": still here\n\n"


def _idle_s(gateway: Gateway) -> float:
    return gateway.settings.keepalive_ms / 1_000


def _event(fact: FactSent) -> bytes:
    name = b"id: %d\n" % fact.seq if fact.is_last else b""
    return b"event: %s\n%sdata: %s\n\n" % (fact.kind.encode(), name, fact.row)


@router.get("/v1/state", openapi_extra=documented(StateQuery))
async def state(request: Request) -> Response:
    """Return the cluster's state after commit `at`, folded from the log."""
    gateway, query = await settled(request, StateQuery)
    if query.at > gateway.cluster.seq:
        raise Refused(
            f"at: {query.at} is beyond the last commit of the log: give 0 to {gateway.cluster.seq}"
        )
    async with _past:
        cluster = await fold_to(gateway.entries, gateway.store, query.at)
    return StreamingResponse(state_lines(cluster), media_type="application/json")
