"""Answers gateways about one nats-server: its state, and orders to restart or to replace it.

The process beside the server runs it, over the connection of its keeper. The gateway decides
whether the others can do without this one (`services/api_gateway/agents/log_servers.py`).
Test: tests/integration/test_bus_servers.py.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import aiohttp
import msgspec

from libs.common import subjects
from libs.common.messages.server_messages import (
    REPLACE,
    REPLICAS,
    RESTART,
    STATUS,
    OrderAnswer,
    Replica,
    ServerStatus,
)
from libs.common.transport.bus import Bus
from libs.embedded.permissions import CORE_ACCOUNT
from libs.embedded.replicas import set_replicas
from libs.embedded.store_watch import ANSWER_S, ROUTE, Health, health, reasons

# The server's state of every stream of the services' account.
STREAMS: Final = f"/jsz?acc={CORE_ACCOUNT}&streams=true"
# After the answer to an order and before the server ends, so that the answer is sent.
FAREWELL_S: Final = 0.2
# Requests that are answered at the same time.
PLACES: Final = 4

_encode = msgspec.msgpack.Encoder().encode


class ServerAnswers:
    """The answers of the process beside the server named `server`.

    `status` describes it now. `restart` and `replace` end it; its parent process then starts it
    again, after `replace` with an empty store. Without `replace` that order is refused.
    """

    def __init__(
        self,
        server: str,
        status: Callable[[], Awaitable[ServerStatus]],
        restart: Callable[[], object],
        replace: Callable[[], object] | None = None,
    ) -> None:
        self.server = server
        self.status = status
        self.orders = {RESTART: restart, REPLACE: replace}

    async def listen(self, bus: Bus) -> None:
        """Answer over `bus`, which must be a connection to this server."""

        async def on_ask(subject: str, data: bytes) -> bytes | None:
            verb = subject.rpartition(".")[2]
            if verb == REPLICAS and data.isdigit():
                return _encode(OrderAnswer(await set_replicas(bus, int(data))))
            return await self._answer(verb)

        own = subjects.ask_server(self.server, "*")
        await bus.subscribe(own, on_ask, concurrent=True, places=PLACES)

    async def _answer(self, verb: str) -> bytes:
        if verb == STATUS:
            return _encode(await self.status())
        order = self.orders.get(verb)
        if order is None:
            return _encode(OrderAnswer(f"server {self.server} cannot carry out {verb}"))
        asyncio.get_running_loop().call_later(FAREWELL_S, order)
        return _encode(OrderAnswer())


async def read_status(server: str, url: str, life: str, free_bytes: int) -> ServerStatus:
    """Return the status that the server's monitoring port at `url` tells."""
    timeout = aiohttp.ClientTimeout(total=ANSWER_S)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session:
            async with session.get(url + ROUTE) as answer:
                body = await answer.read()
                found, why = health(answer.status, body), tuple(reasons(body))
            async with session.get(url + STREAMS) as answer:
                replicas = _replicas(await answer.json(content_type=None))
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        found, why, replicas = Health.SILENT, (f"it does not answer ({error or 'timeout'})",), ()
    return ServerStatus(server, life, found.value, why, free_bytes, replicas)


def _replicas(told: dict[str, Any]) -> tuple[Replica, ...]:
    """Return the replicas in an answer of STREAMS; none without JetStream."""
    return tuple(
        _replica(stream)
        for account in told.get("account_details") or ()
        for stream in account.get("stream_detail") or ()
    )


def _replica(stream: dict[str, Any]) -> Replica:
    cluster, state = stream.get("cluster") or {}, stream["state"]
    leader = str(cluster.get("leader", ""))
    others = {str(peer["name"]) for peer in cluster.get("replicas") or ()}
    return Replica(
        stream=str(stream["name"]),
        leader=leader,
        servers=tuple(sorted({*others, *([leader] if leader else [])})),
        commits=int(state["messages"]),
        bytes=int(state["bytes"]),
        first=int(state["first_seq"]),
        last=int(state["last_seq"]),
    )
