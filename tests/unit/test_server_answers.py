"""When the process beside a server obeys an order to empty its store."""

import asyncio
from functools import partial

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from libs.common import subjects
from libs.common.messages.server_messages import (
    REPLACE,
    REPLICAS,
    STATUS,
    OrderAnswer,
    Replica,
    ServerStatus,
)
from libs.common.replacement import SPARE_BYTES
from libs.common.transport.bus_memory import MemoryBus
from libs.embedded import server_answers
from libs.embedded.server_answers import ServerAnswers, read_status

NAMES = ("nats-1", "nats-2", "nats-3")


class World:
    """Three servers on one bus. `last` is the last sequence that each one stores."""

    def __init__(self) -> None:
        self.bus = MemoryBus()
        self.last = dict.fromkeys(NAMES, 10)
        self.health = dict.fromkeys(NAMES, "good")
        self.free_bytes = 1 << 30
        self.emptied: list[str] = []
        self.answers: dict[str, ServerAnswers] = {}

    async def begin(self, *names: str) -> None:
        for name in names:
            self.answers[name] = ServerAnswers(
                server=name,
                status=partial(self.status, name),
                restart=print,
                replace=partial(self.emptied.append, name),
            )
            await self.answers[name].listen(self.bus)

    async def status(self, name: str) -> ServerStatus:
        await asyncio.sleep(0)
        last = self.last[name]
        stored = Replica("FACTS", "nats-1", NAMES, commits=last, bytes=last, first=1, last=last)
        return ServerStatus(name, "process", self.health[name], (), self.free_bytes, (stored,))

    async def order(self, name: str, data: bytes = b"") -> str:
        answer = await self.bus.request(subjects.ask_server(name, REPLACE), data, 10)
        return msgspec.msgpack.decode(answer, type=OrderAnswer).refused

    async def farewell(self) -> list[str]:
        await asyncio.sleep(2 * server_answers.FAREWELL_S)
        return self.emptied


async def test_server_is_emptied_while_all_others_hold_the_log() -> None:
    world = World()
    await world.begin(*NAMES)
    assert await world.order("nats-2") == ""
    assert await world.farewell() == ["nats-2"]


async def test_of_orders_to_all_servers_at_once_at_most_one_is_obeyed() -> None:
    world = World()
    await world.begin(*NAMES)
    said = await asyncio.gather(*(world.order(name) for name in NAMES))
    assert sum(not why for why in said) <= 1
    assert any("is being replaced" in why for why in said)
    assert len(await world.farewell()) <= 1


async def test_second_server_is_not_emptied_before_the_first_is_full_again() -> None:
    world = World()
    await world.begin(*NAMES)
    assert await world.order("nats-1") == ""
    assert "nats-1 is being replaced" in await world.order("nats-2")
    assert "was ordered before" in await world.order("nats-1")
    world.answers["nats-1"].is_replaced = False  # its next process begins
    world.last["nats-1"] = 4
    assert "nats-1 is behind" in await world.order("nats-2")
    world.last["nats-1"] = 10
    assert await world.order("nats-2") == ""


async def test_server_is_not_emptied_while_another_one_is_unhealthy_or_silent() -> None:
    world = World()
    await world.begin("nats-1", "nats-2")
    assert "nats-3 does not answer" in await world.order("nats-1")
    await world.begin("nats-3")
    world.health["nats-3"] = "waits"
    assert "nats-3 is not healthy" in await world.order("nats-1")
    assert await world.farewell() == []


async def test_server_is_not_emptied_on_a_disk_without_space_for_a_second_store() -> None:
    world = World()
    await world.begin(*NAMES)
    world.free_bytes = SPARE_BYTES
    assert "has 128 MiB free, and a new store" in await world.order("nats-1")
    assert await world.farewell() == []


async def test_server_asks_the_others_whether_it_holds_the_whole_log() -> None:
    world = World()
    alone = ServerAnswers("nats-1", partial(world.status, "nats-1"), print)
    assert not await alone.holds_all()
    await world.begin(*NAMES)
    assert await world.answers["nats-1"].holds_all()
    world.last["nats-1"] = 9
    assert not await world.answers["nats-1"].holds_all()
    assert await world.answers["nats-2"].holds_all()


async def test_refused_order_leaves_no_mark() -> None:
    world = World()
    await world.begin(*NAMES)
    world.last["nats-3"] = 4
    assert "nats-3 is behind" in await world.order("nats-1")
    answer = await world.bus.request(subjects.ask_server("nats-1", STATUS), b"", 1)
    assert not msgspec.msgpack.decode(answer, type=ServerStatus).is_replaced


async def test_order_with_data_that_names_no_servers_is_refused() -> None:
    world = World()
    await world.begin(*NAMES)
    assert "names no servers" in await world.order("nats-1", b"\xc1")
    assert "no name of a server" in await world.order("nats-1", msgspec.msgpack.encode(["*"]))
    many = msgspec.msgpack.encode([f"n{number}" for number in range(99)])
    assert "more than 16" in await world.order("nats-1", many)


async def test_server_without_two_others_is_not_emptied() -> None:
    world = World()

    async def alone() -> ServerStatus:
        return ServerStatus("nats-1", "process", "lost")

    await ServerAnswers("nats-1", alone, print, print).listen(world.bus)
    assert "knows 0 other servers" in await world.order("nats-1")


async def test_log_is_stored_on_three_or_five_servers_and_on_no_other_number() -> None:
    world = World()
    await world.begin(*NAMES)
    asked = subjects.ask_server("nats-1", REPLICAS)
    for count in (b"0", b"1", b"4", b"7"):
        answer = await world.bus.request(asked, count, 10)
        refused = msgspec.msgpack.decode(answer, type=OrderAnswer).refused
        assert "3 or 5 servers" in refused


async def told(streams: bytes) -> ServerStatus:
    """Return the status of a healthy server whose monitoring port tells these streams."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=streams if request.path == "/jsz" else b'{"status": "ok"}')

    port = web.Application()
    port.router.add_get("/{path}", answer)
    async with TestServer(port) as server:
        return await read_status("nats-1", str(server.make_url("")).rstrip("/"), "process", 1)


async def test_status_has_the_replicas_that_the_monitoring_port_tells() -> None:
    state = b'{"messages": 3, "bytes": 30, "first_seq": 2, "last_seq": 4, "deleted": null}'
    stream = b'{"name": "FACTS", "state": %s, "cluster": {"leader": "nats-2", "replicas": %s}}'
    both = b'[{"name": "nats-1"}, {"name": "nats-3"}]'
    streams = b'{"account_details": [{"name": "CORE", "stream_detail": [%s]}]}'
    status = await told(streams % (stream % (state, both)))
    assert status.health == "good"
    assert status.replicas == (Replica("FACTS", "nats-2", NAMES, 3, 30, first=2, last=4),)
    (alone,) = (await told(streams % (b'{"name": "FACTS", "state": %s}' % state))).replicas
    assert (alone.leader, alone.servers) == ("", ())
    assert (await told(b'{"account_details": null}')).replicas == ()


@pytest.mark.parametrize(
    "streams",
    [
        b"",
        b"[]",
        b'{"account_details": [{"stream_detail": [{"name": "FACTS"}]}]}',
        b'{"account_details": [{"stream_detail": [{"name": "FACTS", "state": {"bytes": null}}]}]}',
    ],
)
async def test_server_whose_streams_cannot_be_read_counts_as_silent(streams: bytes) -> None:
    status = await told(streams)
    assert (status.health, status.replicas) == ("silent", ())
