"""Asks the processes beside the log's servers for their state, and orders one to end its server.

The servers are those whose keepers asked this gateway (`admission.py`).
Tests: tests/integration/test_bus_servers.py.
"""

import asyncio
from collections.abc import Iterable
from typing import Final

import msgspec

from libs.common import subjects
from libs.common.errors import Unavailable
from libs.common.messages.server_messages import REPLACE, STATUS, OrderAnswer, ServerStatus
from libs.common.transport.bus import Bus
from services.api_gateway.problems import Problem
from services.api_gateway.views.log_servers import ServerOrdered, refusal

# A server is asked within this time; its own monitoring port may take two answers of 2 s.
ASK_S: Final = 5.0

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
    told = await ask_all(bus, known)
    if why := refusal(told, server, verb == REPLACE):
        raise Problem(409, f"server {server} was not told to {verb}: {why}")
    try:
        answer = _answer.decode(await bus.request(subjects.ask_server(server, verb), b"", ASK_S))
    except (Unavailable, msgspec.DecodeError) as error:
        raise Problem(
            503, f"server {server} did not answer the order to {verb} ({error}): try again"
        ) from error
    if answer.refused:
        raise Problem(409, answer.refused)
    life = next(status.life for status in told if status.server == server)
    return ServerOrdered(server, verb, life)
