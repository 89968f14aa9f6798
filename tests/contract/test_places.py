"""A writer replaces only the value that it has read, in memory and on a real server."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from nats.js.api import KeyValueConfig

from libs.common import subjects
from libs.common.transport.connection_nats import connect
from libs.common.transport.kv import MemoryOutputs, PlaceStore
from libs.common.transport.kv_nats import KvOutputs
from libs.common.transport.revisions import NOTHING
from tests.natsserver import NatsServer


@pytest_asyncio.fixture(params=["memory", "nats"])
async def store(request: pytest.FixtureRequest, server: NatsServer) -> AsyncIterator[PlaceStore]:
    if request.param == "memory":
        yield MemoryOutputs()
        return
    client = await connect([server.url], "test")
    await client.jetstream().create_key_value(KeyValueConfig(subjects.SECRET_BUCKET))
    yield KvOutputs(client, subjects.SECRET_BUCKET)
    await client.jetstream().delete_stream(f"KV_{subjects.SECRET_BUCKET}")
    await client.close()


async def test_a_value_is_swapped_by_its_revision_only(store: PlaceStore) -> None:
    assert await store.kept("t.x=0") == NOTHING
    assert await store.swap("t.x=0", b"one", 0)
    first = await store.kept("t.x=0")
    assert first.data == b"one" and not await store.swap("t.x=0", b"two", 0)
    assert await store.swap("t.x=0", b"", first.revision)
    emptied = await store.kept("t.x=0")
    assert emptied.data == b"" and not await store.swap("t.x=0", b"two", first.revision)
    assert await store.swap("t.x=0", b"two", emptied.revision)
    assert await store.get("t.x=0") == b"two"
