"""Answers gateways about one nats-server: its state, and orders to restart or to replace it.

The process beside the server runs it, over the connection of its keeper. A gateway decides whether
the others can do without this one (`services/api_gateway/agents/log_servers.py`). Before the store
is emptied, this process asks the other servers itself: a faulty gateway, or two orders at once,
must not destroy what only this server holds.
Tests: tests/unit/test_server_answers.py, tests/integration/test_bus_servers.py.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import msgspec

from libs.common import replacement, subjects
from libs.common.errors import Unavailable
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
# Another server's monitoring port may take two answers of 2 s.
PEER_S: Final = 5.0
# A replica may learn of the last commits a moment after another one has them: it is asked again.
LOOKS: Final = 2
LOOK_S: Final = 1.0
# More servers than a cluster has.
PEERS_MAX: Final = 16
NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,63}")


class _Peer(msgspec.Struct):
    name: str


class _Cluster(msgspec.Struct):
    leader: str = ""
    replicas: list[_Peer] | None = None


class _State(msgspec.Struct):
    messages: int
    bytes: int
    first_seq: int
    last_seq: int


class _Stream(msgspec.Struct):
    name: str
    state: _State
    cluster: _Cluster | None = None


class _Account(msgspec.Struct):
    stream_detail: list[_Stream] | None = None


class _Stored(msgspec.Struct):
    """An answer of STREAMS."""

    account_details: list[_Account] | None = None


_encode = msgspec.msgpack.Encoder().encode
_stored = msgspec.json.Decoder(_Stored)
_status = msgspec.msgpack.Decoder(ServerStatus)
_names = msgspec.msgpack.Decoder(list[str])


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
        self.is_replaced = False
        self.bus: Bus | None = None

    async def listen(self, bus: Bus) -> None:
        """Answer over `bus`, which must be a connection to this server."""
        self.bus = bus

        async def on_ask(subject: str, data: bytes) -> bytes | None:
            verb = subject.rpartition(".")[2]
            if verb == STATUS:
                return _encode(await self._told())
            if verb == REPLICAS and data.isdigit():
                return _encode(OrderAnswer(await set_replicas(bus, int(data))))
            return _encode(OrderAnswer(await self._obey(bus, verb, data)))

        own = subjects.ask_server(self.server, "*")
        await bus.subscribe(own, on_ask, concurrent=True, places=PLACES)

    async def holds_all(self) -> bool:
        """Return whether this server is healthy and stores all that the other servers store.

        False before `listen`, and while one of the others does not answer.
        """
        if self.bus is None:
            return False
        others = replacement.named([await self.status()]) - {self.server}
        told = await _ask_all(self.bus, others)
        return replacement.holds_all([*told, await self.status()], self.server)

    async def _told(self) -> ServerStatus:
        """Return the status. The mark is read last: the asker has set its own mark before."""
        found = await self.status()
        return msgspec.structs.replace(found, is_replaced=self.is_replaced)

    async def _obey(self, bus: Bus, verb: str, data: bytes) -> str:
        """Carry out an order soon. Return why not; empty if it is."""
        order = self.orders.get(verb)
        if order is None:
            return f"server {self.server} cannot carry out {verb}"
        if verb == REPLACE and (why := await self._not_replaced(bus, data)):
            return f"server {self.server} does not empty its store: {why}"
        asyncio.get_running_loop().call_later(FAREWELL_S, order)
        return ""

    async def _not_replaced(self, bus: Bus, data: bytes) -> str:
        """Return why the store must stay; empty, with the mark set, if it may be emptied.

        The mark is set before the others are asked. So of two servers that are ordered at the same
        time, at least one sees the mark of the other.
        """
        if self.is_replaced:
            return "it was ordered before, and that order is being checked or carried out"
        self.is_replaced = True
        why = "it could not ask the others"
        try:
            for look in range(LOOKS):
                if look:
                    await asyncio.sleep(LOOK_S)
                why = await self._refusal(bus, data)
                if not why:
                    break
        finally:
            self.is_replaced = not why
        return why

    async def _refusal(self, bus: Bus, data: bytes) -> str:
        """Return why the others cannot do without this server's store, by what they tell now."""
        own = await self.status()
        told = [own]
        asked: dict[str, None] = {}
        try:
            wanted = {*_names.decode(data or _encode([])), *replacement.named(told)} - {self.server}
        except msgspec.DecodeError as error:
            return f"the order names no servers ({error})"
        while wanted:
            if len(asked) + len(wanted) > PEERS_MAX:
                return f"the order and the streams name more than {PEERS_MAX} servers"
            if wrong := [name for name in wanted if NAME.fullmatch(name) is None]:
                return f"{wrong[0][:64]!r} is no name of a server"
            told += await _ask_all(bus, wanted)
            asked.update(dict.fromkeys(sorted(wanted)))
            wanted = replacement.named(told) - {self.server, *asked}
        return replacement.refusal(told, self.server, list(asked))


async def _ask_all(bus: Bus, names: Iterable[str]) -> list[ServerStatus]:
    """Return the states of the servers that answer for themselves."""
    found = await asyncio.gather(*(_ask(bus, name) for name in names))
    return [status for status in found if status is not None]


async def _ask(bus: Bus, name: str) -> ServerStatus | None:
    try:
        found = _status.decode(await bus.request(subjects.ask_server(name, STATUS), b"", PEER_S))
    except (Unavailable, msgspec.DecodeError):
        return None
    return found if found.server == name else None


async def read_status(server: str, url: str, process_id: str, free_bytes: int) -> ServerStatus:
    """Return the status that the server's monitoring port at `url` tells."""
    import aiohttp  # not needed by the launcher of `muster up`, whose server has no such port

    timeout = aiohttp.ClientTimeout(total=ANSWER_S)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session:
            async with session.get(url + ROUTE) as answer:
                body = await answer.read()
                found, why = health(answer.status, body), tuple(reasons(body))
            async with session.get(url + STREAMS) as answer:
                replicas = _replicas(await answer.read())
    except (aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError) as error:
        found, why, replicas = Health.SILENT, (f"it does not answer ({error or 'timeout'})",), ()
    return ServerStatus(server, process_id, found.value, why, free_bytes, replicas)


def _replicas(body: bytes) -> tuple[Replica, ...]:
    """Return the replicas in an answer of STREAMS; none without JetStream. Raises DecodeError."""
    return tuple(
        _replica(stream)
        for account in _stored.decode(body).account_details or ()
        for stream in account.stream_detail or ()
    )


def _replica(stream: _Stream) -> Replica:
    cluster, state = stream.cluster or _Cluster(), stream.state
    others = {peer.name for peer in cluster.replicas or ()}
    return Replica(
        stream=stream.name,
        leader=cluster.leader,
        servers=tuple(sorted({*others, *([cluster.leader] if cluster.leader else [])})),
        commits=state.messages,
        bytes=state.bytes,
        first=state.first_seq,
        last=state.last_seq,
    )
