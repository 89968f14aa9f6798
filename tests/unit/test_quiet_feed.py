"""When a subscription to the log that brings nothing new leaves its server.

The client is a stand-in: tests/netns/test_cut_off_server.py cuts a real server off.
"""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from nats.aio.client import Client

from libs.common.transport import feed_nats
from libs.common.transport.feed_nats import Feed

SOON_S = 10.0
# Questions that fail at once, with these pauses between them, before the feed leaves its server.
LEAVES_S, AGAIN_S, IDLE_S = 0.5, 0.02, 0.3
MANY = 5


class Server:
    """A connection to a server that sends nothing. `answers` returns whether the leader answers."""

    def __init__(self, answers: Callable[[], bool]) -> None:
        self.answers = answers
        self.asked: list[float] = []
        self.left: list[float] = []

    def new_inbox(self) -> str:
        return "inbox"

    async def subscribe(self, inbox: str, **options: Any) -> "Server":
        return self

    async def unsubscribe(self) -> None:
        pass

    def jetstream(self, timeout: float) -> "Server":
        return self

    async def add_consumer(self, stream: str, config: Any) -> None:
        pass

    async def stream_info(self, stream: str) -> Any:
        self.asked.append(asyncio.get_running_loop().time())
        if not self.answers():
            raise TimeoutError
        return SimpleNamespace(state=SimpleNamespace(last_seq=0))

    async def force_reconnect(self) -> None:
        self.left.append(asyncio.get_running_loop().time())


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("LEAVES_S", LEAVES_S),
        ("ASKS_LEADER_S", IDLE_S),
        ("ASKS_AGAIN_S", AGAIN_S),
        ("IDLE_S", AGAIN_S),
        ("SILENCE_S", 2 * SOON_S),
    ):
        monkeypatch.setattr(feed_nats, name, value)


async def read(server: Server, until: Callable[[], bool]) -> Feed:
    """Read from a server until the subscription ends, or until something is so."""
    feed = Feed(cast("Client", server), 0)
    async with asyncio.timeout(SOON_S):
        async for _ in feed.batches():
            if until():
                break
    return feed


async def test_question_without_an_answer_is_repeated_soon_and_then_the_server_is_left() -> None:
    server = Server(lambda: False)
    assert (await read(server, lambda: False)).left
    assert len(server.left) == 1
    assert len(server.asked) > MANY
    assert server.left[0] - server.asked[0] >= LEAVES_S


async def test_server_whose_leader_answers_again_is_kept() -> None:
    server = Server(lambda: len(server.asked) > MANY)
    feed = await read(server, lambda: len(server.asked) > MANY + 2)
    assert not feed.left and server.left == []
    assert server.asked[-1] - server.asked[-2] >= IDLE_S
