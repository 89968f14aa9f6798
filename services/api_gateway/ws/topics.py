"""The topics `jobs`, `nodes`, `fleet` and `events`: frames of the pieces that the streams of
server-sent events are made from too.

The `seq` of a frame is the commit up to which the client has everything of the subscription with
this frame. So a client continues after the `seq` of its last frame, wherever that was.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, NamedTuple

from libs.common.model import NodeId
from services.api_gateway.access import roles
from services.api_gateway.access.roles import Principal
from services.api_gateway.times import instant_ns
from services.api_gateway.views import rows
from services.api_gateway.views.deltas import Piece, Stream
from services.api_gateway.views.fact_stream import FactFilter, fact_groups
from services.api_gateway.views.interests import Interest
from services.api_gateway.ws.filters import EventsFilter, JobsFilter, NodesFilter
from services.api_gateway.ws.frames import Name
from services.api_gateway.ws.protocol import Subscribe

if TYPE_CHECKING:
    from services.api_gateway.gateway import Gateway

SNAPSHOT: Final = "snapshot"
READY: Final = "ready"
FACT: Final = "fact"
# The member of a snapshot that has the rows of a kind.
MEMBERS: Final = {rows.JOB: b"jobs", rows.NODE: b"nodes", rows.FLEET: b"nodes"}


class Batch(NamedTuple):
    """Messages to send at once; with them the client has everything up to `seq`."""

    messages: list[bytes]
    seq: int


def stream_of(gateway: "Gateway", principal: Principal, asked: Subscribe) -> Stream:
    """Return the stream of jobs, nodes or the fleet that a subscription is for.

    Raises Problem 429 if its filter is one too many of the tenant, and 410 if it cannot continue
    without a gap.
    """
    chosen, ids = asked.filter, frozenset[NodeId]()
    if isinstance(chosen, JobsFilter):
        interest = Interest(tenant=roles.eyes(principal), jobs=chosen.of_jobs())
    else:
        assert isinstance(chosen, NodesFilter)
        is_map, ids = asked.topic == "fleet", chosen.names()
        interest = Interest(nodes=not is_map, devices=is_map)
    gateway.waiting.feeds.check_filters(interest, principal.tenant)
    stream = Stream(
        gateway=gateway,
        principal=principal,
        interest=interest,
        after=asked.after,
        only_changes=not chosen.snapshot,
        node_ids=ids,
    )
    stream.check_after()
    return stream


async def row_batches(stream: Stream, name: Name) -> AsyncGenerator[Batch, None]:
    """Yield the frames of a stream of jobs or nodes, for ever."""
    async with aclosing(stream.pieces()) as pieces:
        async for piece in pieces:
            if piece is not None:
                yield Batch(_messages(name, piece), piece.seq)


def _messages(name: Name, piece: Piece) -> list[bytes]:
    if piece.is_ready:
        return [name.frame(READY, piece.seq, b'{"seq":%d}' % piece.seq)]
    if piece.is_first:
        data = b'{"%s":[%s]}' % (MEMBERS[piece.kind], b",".join(piece.rows))
        return [name.frame(SNAPSHOT, piece.seq, data)]
    last = len(piece.rows) - 1
    return [
        name.frame(piece.kind, piece.seq if place == last else piece.before, row)
        for place, row in enumerate(piece.rows)
    ]


async def fact_filter_of(
    gateway: "Gateway", principal: Principal, chosen: EventsFilter
) -> FactFilter:
    """Return the filter of facts of a subscription.

    Raises Refused if it is not valid, and Problem for a job that does not exist.
    """
    now_ns = gateway.clock.wall_ns()
    job_id = (await gateway.lookup.job_seqs(chosen.job, principal))[0] if chosen.job else ""
    return FactFilter(
        cluster=gateway.cluster,
        principal=principal,
        kinds=chosen.kind,
        job_id=job_id,
        node_id=chosen.node,
        since_ns=instant_ns(chosen.since, "filter.since", now_ns),
        until_ns=instant_ns(chosen.until, "filter.until", now_ns),
    )


async def fact_batches(
    gateway: "Gateway", fact_filter: FactFilter, after: int, name: Name
) -> AsyncGenerator[Batch, None]:
    """Yield the facts after `after`, or from now on, for ever."""
    seq = after or gateway.cluster.seq
    yield Batch([name.frame(READY, seq, b'{"seq":%d}' % seq)], seq)
    async with aclosing(fact_groups(gateway, fact_filter, seq)) as groups:
        async for facts in groups:
            messages = []
            for fact in facts:
                before, seq = seq, fact.seq if fact.is_last else seq
                messages.append(name.frame(FACT, seq if fact.is_last else before, fact.row))
            if messages:
                yield Batch(messages, seq)
