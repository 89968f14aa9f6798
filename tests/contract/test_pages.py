"""The store of quota's rates: no write is lost to another process."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from libs.common import subjects
from libs.common.errors import Unavailable
from libs.common.settings.settings import Settings
from libs.common.transport.connection_nats import connect
from libs.common.transport.kv_nats import create_buckets
from libs.common.transport.pages import MemoryPages, Overtaken, PageStore
from libs.common.transport.pages_nats import NatsPages
from tests.natsserver import NatsServer


@pytest_asyncio.fixture(params=["memory", "nats"])
async def pages(request: pytest.FixtureRequest) -> AsyncIterator[PageStore]:
    if request.param == "memory":
        yield MemoryPages()
        return
    server: NatsServer = request.getfixturevalue("server")
    client = await connect([server.url], "test")
    await create_buckets(client, Settings())
    yield NatsPages(client)
    for bucket in (subjects.LEADER_BUCKET, subjects.OUTPUT_BUCKET, subjects.SECRET_BUCKET):
        await client.jetstream().delete_stream(f"KV_{bucket}")
    await client.close()


async def test_a_value_is_read_back_with_the_revision_that_the_next_write_names(
    pages: PageStore,
) -> None:
    assert await pages.get(3) == (b"", 0)
    first = await pages.put(3, b"one", 0)
    assert await pages.get(3) == (b"one", first)
    second = await pages.put(3, b"two", first)
    assert await pages.get(3) == (b"two", second) and await pages.get(4) == (b"", 0)


async def test_a_write_on_top_of_one_that_was_not_read_is_refused(pages: PageStore) -> None:
    first = await pages.put(1, b"one", 0)
    for revision in (0, first + 9):
        with pytest.raises(Overtaken):
            await pages.put(1, b"two", revision)
    assert (await pages.get(1))[0] == b"one"


async def test_without_its_bucket_nothing_is_stored(server: NatsServer) -> None:
    client = await connect([server.url], "test")
    store = NatsPages(client)
    assert await store.get(0) == (b"", 0)
    with pytest.raises(Unavailable):
        await store.put(0, b"one", 0)
    await client.close()
