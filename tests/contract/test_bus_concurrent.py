"""A subscription that answers concurrently: the same on both twins of the bus."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from libs.common.transport.bus import CONCURRENT_MAX, Bus, Handler
from libs.common.transport.bus_memory import MemoryBus
from libs.common.transport.bus_nats import NatsBus
from libs.common.transport.connection_nats import connect
from libs.embedded import servers

ANSWER_S = 5.0


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    (port,) = servers.free_ports(1)
    folder: Path = tmp_path_factory.mktemp("nats")
    line = [servers.binary(), "-a", "127.0.0.1", "-p", str(port), "-sd", str(folder), "-n", "one"]
    with subprocess.Popen(line, stderr=subprocess.DEVNULL) as server:
        servers.wait_ready(port, "one")
        yield port
        server.terminate()


@pytest_asyncio.fixture(params=["memory", "nats"])
async def bus(request: pytest.FixtureRequest) -> AsyncIterator[Bus]:
    if request.param == "memory":
        yield MemoryBus()
        return
    client = await connect([f"nats://127.0.0.1:{request.getfixturevalue('port')}"], "test")
    yield NatsBus(client)
    await client.close()


class Slow:
    """Answers b"slow" once it is let go, anything else at once."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.running = 0
        self.most = 0

    async def answer(self, subject: str, data: bytes) -> bytes:
        self.running += 1
        self.most = max(self.most, self.running)
        if data == b"slow":
            await self.go.wait()
        self.running -= 1
        return data


async def settled(holds: Callable[[], bool]) -> None:
    """It has come to hold, and what more there may be has had its time."""
    async with asyncio.timeout(ANSWER_S):
        while not holds():
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)


async def test_slow_answer_delays_no_other(bus: Bus) -> None:
    slow = Slow()
    await bus.subscribe("ask", slow.answer, concurrent=True)
    waiting = asyncio.create_task(bus.request("ask", b"slow", ANSWER_S))
    await settled(lambda: slow.running > 0)
    assert await bus.request("ask", b"quick", ANSWER_S) == b"quick"
    slow.go.set()
    assert await waiting == b"slow"


async def test_concurrent_messages_are_bounded_and_none_is_lost(bus: Bus) -> None:
    slow = Slow()
    await bus.subscribe("ask", slow.answer, concurrent=True)
    asks = [
        asyncio.create_task(bus.request("ask", b"slow", ANSWER_S))
        for _ in range(CONCURRENT_MAX + 20)
    ]
    await settled(lambda: slow.running >= CONCURRENT_MAX)
    assert (slow.running, slow.most) == (CONCURRENT_MAX, CONCURRENT_MAX)
    slow.go.set()
    assert await asyncio.gather(*asks) == [b"slow"] * len(asks)


async def test_a_plain_subscription_answers_one_at_a_time_in_order(bus: Bus) -> None:
    slow, heard = Slow(), []

    async def answer(subject: str, data: bytes) -> bytes:
        heard.append(data)
        return await slow.answer(subject, data)

    await bus.subscribe("ask", answer)
    asks = [
        asyncio.create_task(bus.request("ask", data, ANSWER_S))
        for data in (b"slow", b"1", b"2", b"3")
    ]
    await settled(lambda: bool(heard))
    assert heard == [b"slow"]
    slow.go.set()
    await asyncio.gather(*asks)
    assert (heard, slow.most) == ([b"slow", b"1", b"2", b"3"], 1)


async def test_each_message_reaches_one_member_of_a_queue_and_all_other_subscribers(
    bus: Bus,
) -> None:
    heard: list[str] = []

    def listener(name: str) -> Handler:
        async def hear(subject: str, data: bytes) -> bytes | None:
            heard.append(name)
            return None

        return hear

    for name, queue in (("a", "q"), ("b", "q"), ("c", "")):
        await bus.subscribe("told", listener(name), concurrent=True, queue=queue)
    for _ in range(10):
        await bus.publish("told", b"")
    await settled(lambda: len(heard) >= 20)
    assert len(heard) == 20 and heard.count("c") == 10
