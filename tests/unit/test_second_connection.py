"""When a request goes through the second connection, and when the first one changes servers."""

import asyncio

import pytest

from libs.common.errors import Unavailable
from libs.common.transport.bus import Handler
from libs.common.transport.bus_memory import MemoryBus
from libs.common.transport.second_connection import MISSED_MAX, REPEAT_EVERY, RepeatingBus

ANSWER_S = 0.2


class World:
    """A process with two connections; `silent` buses deliver requests and lose the answers."""

    def __init__(self) -> None:
        self.first, self.second = MemoryBus(), MemoryBus()
        self.has_second = True
        self.silent: list[str] = []
        self.asked: list[str] = []
        self.left = 0
        self.slow_s = 0.0
        self.bus = RepeatingBus(
            self.first, lambda: self.second if self.has_second else None, self.leave
        )

    async def leave(self) -> None:
        self.left += 1

    async def listen(self) -> None:
        for name, bus in (("first", self.first), ("second", self.second)):
            await bus.subscribe("ask", self._handler(name), concurrent=True)

    def _handler(self, name: str) -> Handler:
        async def answer(subject: str, data: bytes) -> bytes | None:
            self.asked.append(name)
            await asyncio.sleep(self.slow_s)
            return None if name in self.silent else name.encode()

        return answer

    async def ask(self) -> bytes:
        return await self.bus.request("ask", b"", ANSWER_S)


@pytest.fixture
async def world() -> World:
    found = World()
    await found.listen()
    return found


async def test_answered_request_is_not_repeated(world: World) -> None:
    assert await world.ask() == b"first"
    assert world.asked == ["first"]


async def test_unanswered_request_is_answered_through_the_second_connection(world: World) -> None:
    world.silent = ["first"]
    assert await world.ask() == b"second"
    assert world.asked == ["first", "second"]


async def test_first_connection_changes_servers_after_some_misses_in_a_row(world: World) -> None:
    world.silent = ["first"]
    for _ in range(MISSED_MAX - 1):
        await world.ask()
    world.silent = []
    await world.ask()
    world.silent = ["first"]
    for _ in range(MISSED_MAX - 1):
        await world.ask()
    assert world.left == 0
    await world.ask()
    assert world.left == 1


async def test_silence_on_both_connections_changes_no_server(world: World) -> None:
    world.silent = ["first", "second"]
    for _ in range(2 * MISSED_MAX):
        with pytest.raises(Unavailable):
            await world.ask()
    assert world.left == 0


async def test_silent_scheduler_gets_a_third_more_requests_and_not_twice_as_many(
    world: World,
) -> None:
    world.silent = ["first", "second"]
    for _ in range(2 * REPEAT_EVERY):
        with pytest.raises(Unavailable):
            await world.ask()
    assert world.asked.count("first") == 2 * REPEAT_EVERY
    assert world.asked.count("second") == 2


async def test_slow_answer_of_the_first_connection_spares_the_next_requests(world: World) -> None:
    world.slow_s = 0.7 * ANSWER_S
    for _ in range(REPEAT_EVERY):
        assert await world.ask() in (b"first", b"second")
    assert world.asked.count("second") == 1 and world.left == 0


async def test_request_without_a_second_connection_fails_as_on_the_first(world: World) -> None:
    world.has_second, world.silent = False, ["first"]
    with pytest.raises(Unavailable):
        await world.ask()
    assert world.asked == ["first"]


async def test_refused_request_is_repeated_at_once(world: World) -> None:
    world.first.subscriptions.clear()
    began = asyncio.get_running_loop().time()
    assert await world.ask() == b"second"
    assert world.asked == ["second"] and world.left == 0
    assert asyncio.get_running_loop().time() - began < ANSWER_S


async def test_other_messages_use_the_first_connection(world: World) -> None:
    heard: list[bytes] = []

    async def hear(subject: str, data: bytes) -> None:
        heard.append(data)

    await world.bus.subscribe("told", hear)
    await world.bus.publish("told", b"x")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert heard == [b"x"] and len(world.first.subscriptions) == 2
