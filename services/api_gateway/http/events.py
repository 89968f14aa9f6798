"""/v1/events: the facts of the log; /v1/state: the cluster's state after any past commit."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Final

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from libs.common import facts as f
from libs.common import reading
from libs.common.errors import Refused
from libs.common.facts import KINDS, Commit
from libs.common.model import JobId
from libs.common.transport.log import Entry
from services.api_gateway.access import roles
from services.api_gateway.access.roles import Principal
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
from services.api_gateway.intents.fields import check_range
from services.api_gateway.times import instant_ns
from services.api_gateway.views.history import concerns, row
from services.api_gateway.views.others import seen_by
from services.api_gateway.views.past import fold_to, state_lines

# One request reads at most this many commits; `next` continues after them.
SCAN_MAX: Final = 20_000
EVENTS_MAX: Final = 1_000
# `last` reads at most LAST_SCAN_MAX commits, in slices: most commits may be access records, which
# are not shown.
LAST_SCAN_MAX: Final = 100_000
LAST_SLICE: Final = 1_000

# Facts that every tenant may read: about machines and about the cluster as a whole.
OF_DEVICES: Final = (
    f.GpuFaulted,
    f.GpuRecovered,
    f.GpuServiceSet,
    f.GpuControlRequested,
    f.GpuControlled,
)
OF_ALL: Final = (
    f.TermBegan,
    f.ClusterConfigured,
    f.LeaseExtended,
    f.NodeLost,
    f.NodeReturned,
    *OF_DEVICES,
)
OF_KEYS: Final = (f.KeyCreated, f.KeyRotated, f.KeyRevoked, f.KeyLimitsSet)

router = APIRouter(tags=["log"])

_encode = msgspec.json.Encoder().encode
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
    fact_filter = _FactFilter(gateway, query, principal, job_id)
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
    rows, cursor = await _page(gateway, fact_filter, after=after, upto=upto, limit=query.limit)
    return answer(
        {
            "events": rows,
            "next": cursor,
            "more": cursor < gateway.cluster.seq,
            "seq": gateway.cluster.seq,
        }
    )


async def _commit_before_last(gateway: Gateway, fact_filter: "_FactFilter", count: int) -> int:
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
    gateway: Gateway, fact_filter: "_FactFilter", after: int, upto: int, limit: int
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


async def _followed(
    gateway: Gateway, fact_filter: "_FactFilter", after: int
) -> AsyncIterator[bytes]:
    """Stream rows as lines. Empty lines keep an idle connection open."""
    async with aclosing(_groups(gateway, fact_filter, after)) as groups:
        async for rows in groups:
            yield b"".join(_encode(line) + b"\n" for line in rows) or b"\n"


async def _served(gateway: Gateway, fact_filter: "_FactFilter", after: int) -> AsyncIterator[bytes]:
    """Stream rows as server-sent events.

    Only a commit's last fact carries its sequence as the id, so that a client that continues after
    this id misses no fact.
    """
    async with aclosing(_groups(gateway, fact_filter, after)) as groups:
        async for rows in groups:
            last = {row["seq"]: place for place, row in enumerate(rows)}
            yield (
                b"".join(_event(row, last[row["seq"]] == place) for place, row in enumerate(rows))
                or b": still here\n\n"
            )


def _event(row: dict[str, object], last: bool) -> bytes:
    name = f"id: {row['seq']}\n".encode() if last else b""
    return b"event: %s\n%sdata: %s\n\n" % (str(row["kind"]).encode(), name, _encode(row))


async def _groups(
    gateway: Gateway, fact_filter: "_FactFilter", after: int
) -> AsyncGenerator[list[dict[str, object]], None]:
    """Yield the matching rows after `after` for ever, whole commits at a time.

    An empty group means that nothing came for MUSTER_KEEPALIVE_MS.
    """
    while True:
        async with aclosing(gateway.entries.scan(after, gateway.cluster.seq)) as slices:
            async for piece in slices:
                after = piece[-1].seq if piece else after
                rows = [line for entry in piece for line in fact_filter.rows(entry)]
                if rows:
                    yield rows
        if gateway.cluster.seq <= after:
            await asyncio.wait(
                (gateway.waiting.sequence(after + 1),),
                timeout=gateway.settings.keepalive_ms / 1_000,
            )
            if gateway.cluster.seq <= after:
                yield []


class _FactFilter:
    """The filter of facts. Raises Refused naming the parameter that is not valid."""

    def __init__(
        self, gateway: Gateway, query: EventsQuery, principal: Principal, job_id: str
    ) -> None:
        self.cluster = gateway.cluster
        self.principal = principal
        now_ns = gateway.clock.wall_ns()
        check_range("after", query.after, 0, 1 << 62)
        self.since_ns = instant_ns(query.since, "since", now_ns)
        self.until_ns = instant_ns(query.until, "until", now_ns)
        self.job_id = job_id
        self.node_id = query.node
        self.kinds = _kinds(query.kind)

    def rows(self, entry: Entry) -> list[dict[str, object]]:
        commit = reading.read_alone(entry.subject, entry.data)
        if commit.at_ns < self.since_ns or (self.until_ns and commit.at_ns > self.until_ns):
            return []
        matching = (fact for fact in commit.facts if self._matches(commit, fact))
        return [
            row(entry.seq, commit, seen_by(self.principal, self.cluster, fact)) for fact in matching
        ]

    def _matches(self, commit: Commit, fact: f.AnyFact | f.Unknown) -> bool:
        if not (
            f.kind_of(fact).startswith(self.kinds)
            if self.kinds
            else not isinstance(fact, f.AccessRecorded)
        ):
            return False
        if not (self.job_id or self._may_read(fact)):
            return False
        if self.job_id and not (concerns(fact, self.job_id) and hasattr(fact, "job_id")):
            return False
        return not self.node_id or _on_node(commit, fact, self.node_id)

    def _may_read(self, fact: f.AnyFact | f.Unknown) -> bool:
        """Return whether the principal may read the fact.

        Tenants read their own facts and those in OF_ALL; only administrators read facts of keys.
        """
        if isinstance(fact, OF_KEYS) or roles.sees_all(self.principal):
            return self.principal.role == roles.ADMIN or not isinstance(fact, OF_KEYS)
        job = self.cluster.jobs.get(getattr(fact, "job_id", JobId("")))
        model = self.cluster.models.get(getattr(fact, "model", getattr(fact, "name", "")))
        tenant = getattr(fact, "tenant", None) or (
            job.tenant if job else model.tenant if model else ""
        )
        return tenant == self.principal.tenant or isinstance(fact, OF_ALL)


def _on_node(commit: Commit, fact: f.AnyFact | f.Unknown, node_id: str) -> bool:
    if isinstance(fact, f.JobPlaced):
        return any(member.node_id == node_id for member in fact.members)
    return getattr(fact, "node_id", "") == node_id


def _kinds(text: str) -> tuple[str, ...]:
    kinds = tuple(kind for kind in text.split(",") if kind)
    for kind in kinds:
        if not any(known.startswith(kind) for known in KINDS):
            raise Refused(
                f"kind: {kind[:32]!r} is not known: give one or more of {', '.join(sorted(KINDS))}"
            )
    return kinds


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
