"""A key is taken once, by one of all processes that ask at the same time."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from libs.common.errors import Unavailable
from libs.common.transport.connection_nats import connect
from libs.common.transport.once import MemoryOnce, OnceStore
from libs.common.transport.once_nats import KvOnce
from tests.natsserver import NatsServer


@pytest_asyncio.fixture(params=["memory", "nats"])
async def stores(request: pytest.FixtureRequest) -> AsyncIterator[tuple[OnceStore, OnceStore]]:
    """One store as two processes see it."""
    if request.param == "memory":
        store = MemoryOnce()
        yield store, store
        return
    url = request.getfixturevalue("server").url
    clients = [await connect([url], name) for name in ("one", "two")]
    yield KvOnce(clients[0], 1), KvOnce(clients[1], 1)
    for client in clients:
        await client.close()


async def test_of_many_that_take_a_key_together_one_gets_it(
    stores: tuple[OnceStore, OnceStore],
) -> None:
    taken = await asyncio.gather(*(store.take("together") for store in stores * 4))
    assert sorted(taken) == [False] * 7 + [True]
    assert not await stores[1].take("together")
    assert await stores[1].take("another")


async def test_a_store_that_does_not_answer_is_unavailable(server: NatsServer) -> None:
    client = await connect([server.url], "one")
    await client.close()
    with pytest.raises(Unavailable, match="SESSIONS"):
        await KvOnce(client, 1).take("x")
