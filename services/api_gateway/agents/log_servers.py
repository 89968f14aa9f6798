"""Asks the processes beside the log's servers for their state, and orders one to end its server.

The servers are those whose keepers asked this gateway (`admission.py`).
Tests: tests/integration/test_bus_servers.py.
"""

import asyncio
from collections.abc import Iterable
from typing import Final

import msgspec

from libs.common import subjects
from libs.common.errors import Refused, Unavailable
from libs.common.messages.server_messages import (
    REPLACE,
    REPLICAS,
    STATUS,
    OrderAnswer,
    ServerStatus,
)
from libs.common.transport.bus import Bus
from services.api_gateway.problems import Problem
from services.api_gateway.views.log_servers import ServerOrdered, growth_refusal, names, refusal

# A server is asked within this time; its own monitoring port may take two answers of 2 s.
ASK_S: Final = 5.0
# Time for a server to ask the others twice before it empties its store.
REPLACE_S: Final = 20.0
# Time for a server to change all streams.
REPLICAS_S: Final = 60.0
# Numbers of replicas: odd, so that one more server also bears one more failure in two.
COUNTS: Final = ("3", "5")

_status = msgspec.msgpack.Decoder(ServerStatus)
_answer = msgspec.msgpack.Decoder(OrderAnswer)


async def ask_all(bus: Bus, servers: Iterable[str]) -> list[ServerStatus]:
    """Return the states of all servers that answer."""
    found = await asyncio.gather(*(_ask(bus, server) for server in servers))
    return [status for status in found if status is not None]


async def _ask(bus: Bus, server: str) -> ServerStatus | None:
    try:
        return _status.decode(await bus.request(subjects.ask_server(server, STATUS), b"", ASK_S))
    except (Unavailable, msgspec.DecodeError):
        return None


async def order(bus: Bus, servers: Iterable[str], server: str, verb: str) -> ServerOrdered:
    """Order a server to end and start again. Raises Problem 404, 409 or 503."""
    known = list(servers)
    if server not in known:
        text = f"server {server[:64]!r} is not known: GET /v1/bus lists the servers"
        raise Problem(404, text)
    first = await ask_all(bus, [server])
    told = [*first, *await ask_all(bus, [name for name in known if name != server])]
    if why := refusal(told, server, verb == REPLACE):
        raise Problem(409, f"server {server} was not told to {verb}: {why}")
    if verb == REPLACE:
        others = [name for name in names(told) if name != server]
        await _ordered(bus, server, verb, msgspec.msgpack.encode(others), REPLACE_S)
    else:
        await _ordered(bus, server, verb, b"", ASK_S)
    process_id = next(status.process_id for status in told if status.server == server)
    return ServerOrdered(server, verb, process_id)


async def set_replicas(bus: Bus, servers: Iterable[str], count: str) -> ServerOrdered:
    """Have every stream stored on `count` servers. Raises Refused, Problem 409 or 503."""
    if count not in COUNTS:
        raise Refused(f"replicas: {count[:64]!r} is not possible: use {' or '.join(COUNTS)}")
    told = await ask_all(bus, servers)
    if why := growth_refusal(told, int(count)):
        raise Problem(409, f"the streams were not changed to {count} replicas: {why}")
    await _ordered(bus, told[0].server, REPLICAS, count.encode(), REPLICAS_S)
    return ServerOrdered(told[0].server, REPLICAS, told[0].process_id)


async def _ordered(bus: Bus, server: str, verb: str, data: bytes, within_s: float) -> None:
    try:
        answer = _answer.decode(
            await bus.request(subjects.ask_server(server, verb), data, within_s)
        )
    except (Unavailable, msgspec.DecodeError) as error:
        raise Problem(
            503, f"server {server} did not answer the order to {verb} ({error}): try again"
        ) from error
    if answer.refused:
        raise Problem(409, answer.refused)
