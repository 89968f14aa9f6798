"""A write replaces exactly the revision that it names, in memory and on a real server."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from libs.common import subjects
from libs.common.errors import Fenced
from libs.common.transport.connection_nats import connect
from libs.common.transport.revisions import NOTHING, MemoryRevisions, Revisions
from libs.common.transport.revisions_nats import KvRevisions
from tests.natsserver import NatsServer


@pytest_asyncio.fixture(params=["memory", "nats"])
async def store(request: pytest.FixtureRequest, server: NatsServer) -> AsyncIterator[Revisions]:
    if request.param == "memory":
        yield MemoryRevisions()
        return
    client = await connect([server.url], "test")
    yield KvRevisions(client, 1)
    await client.jetstream().delete_stream(f"KV_{subjects.NOTIFY_BUCKET}")
    await client.close()


async def test_a_value_is_replaced_by_its_revision_only(store: Revisions) -> None:
    first = await store.put("at.red.0", b"1", 0)
    assert await store.get("at.red.0") == (b"1", first)
    with pytest.raises(Fenced):
        await store.put("at.red.0", b"x", 0)
    second = await store.put("at.red.0", b"2", first)
    assert second > first
    with pytest.raises(Fenced):
        await store.put("at.red.0", b"x", first)
    assert await store.get("at.red.0") == (b"2", second)


async def test_keys_are_apart_and_a_new_one_has_no_value(store: Revisions) -> None:
    await store.put("leader", b"a", 0)
    assert await store.get("at.red.1") == NOTHING
    await store.put("at.red.1", b"b", 0)
    assert (await store.get("leader")).data == b"a"
