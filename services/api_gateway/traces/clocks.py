"""Measures the clocks of nodes over the bus. Tests: tests/integration/test_traces_cluster.py."""

import asyncio
import time
from collections.abc import Sequence
from typing import Final

import msgspec

from libs.common import subjects
from libs.common.errors import Unavailable
from libs.common.facts import UNDECODABLE
from libs.common.messages.trace_messages import ClockRead, TraceAsk, TraceClock
from libs.common.model import NodeId
from libs.common.traces.clock_offset import ClockOffset, Exchange, offset_of
from services.api_gateway.gateway import Gateway

# Round trips with each node; the shortest ones count.
EXCHANGES: Final = 16
# Nodes that are asked at the same time: more would make the round trips longer.
AT_ONCE: Final = 8

_encode = msgspec.msgpack.Encoder().encode
_read = msgspec.msgpack.Decoder(ClockRead)


async def measured(gateway: Gateway, nodes: Sequence[NodeId]) -> dict[NodeId, ClockOffset]:
    """Return the clock of each node against this gateway's, without nodes that do not answer."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(node_id: NodeId) -> ClockOffset | None:
        async with turns:
            return await _measured(gateway, node_id)

    found = await asyncio.gather(*map(one, nodes))
    return {node: offset for node, offset in zip(nodes, found, strict=True) if offset is not None}


async def _measured(gateway: Gateway, node_id: NodeId) -> ClockOffset | None:
    subject, ask = subjects.ask_node(node_id, "trace"), encoded(TraceClock())
    exchanges: list[Exchange] = []
    try:
        for _ in range(EXCHANGES):
            sent_ns = time.time_ns()
            answer = await gateway.bus.request(subject, ask, gateway.settings.ask_ms / 1_000)
            returned_ns = time.time_ns()
            clock = _read.decode(answer)
            exchanges.append(Exchange(sent_ns, clock.received_ns, clock.answered_ns, returned_ns))
    except (Unavailable, *UNDECODABLE):
        return None
    return offset_of(exchanges)


def encoded(ask: TraceAsk) -> bytes:
    """Return a question to a node as bytes."""
    return _encode(ask)
