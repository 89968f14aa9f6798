"""The leadership key on a real server belongs to the latest term, and no process takes it back."""

import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from nats.aio.client import Client

from libs.common import subjects
from libs.common.errors import Fenced, Unavailable
from libs.common.settings.settings import Settings
from libs.common.transport.connection_nats import connect
from libs.common.transport.kv_nats import KvLeadership, create_buckets
from libs.common.transport.terms_nats import KvTerms
from tests.natsserver import NatsServer

MINUTE_NS = 60_000_000_000
KEY = f"$KV.{subjects.LEADER_BUCKET}.scheduler"


@pytest_asyncio.fixture
async def client(server: NatsServer) -> AsyncIterator[Client]:
    client = await connect([server.url], "test")
    await create_buckets(client, Settings())
    yield client
    for bucket in (subjects.LEADER_BUCKET, subjects.OUTPUT_BUCKET, subjects.SECRET_BUCKET):
        await client.jetstream().delete_stream(f"KV_{bucket}")
    await client.close()


async def test_a_later_term_takes_the_key_and_the_older_one_renews_no_more(client: Client) -> None:
    older, later = KvLeadership(client), KvLeadership(client)
    await older.renew(3)
    await later.renew(7)
    for _ in range(2):
        with pytest.raises(Unavailable):
            await older.renew(3)
    await later.renew(7)


async def test_a_claim_that_comes_after_a_later_term_s_takes_nothing(client: Client) -> None:
    later = KvLeadership(client)
    await later.renew(7)
    with pytest.raises(Unavailable, match="term 7 has the leadership key"):
        await KvLeadership(client).renew(3)
    await later.renew(7)


async def test_renewal_continues_after_a_lost_answer(client: Client) -> None:
    leader = KvLeadership(client)
    await leader.renew(3)
    await client.jetstream().publish(KEY, b"3")  # stored, and the answer is lost
    with pytest.raises(Unavailable):
        await leader.renew(3)
    await leader.renew(3)


async def test_a_key_that_an_earlier_version_wrote_is_taken(client: Client) -> None:
    await client.jetstream().publish(KEY, b"scheduler-a 1f00 12")
    await KvLeadership(client).renew(3)


async def test_of_two_processes_that_begin_a_term_together_one_is_refused(client: Client) -> None:
    one, other = KvTerms(client, "audit"), KvTerms(client, "audit")
    assert (await one.newest(), await other.newest()) == (0, 0)
    first = await one.begin(0, "a")
    with pytest.raises(Fenced, match="another audit"):
        await other.begin(0, "b")
    term, at_ns = await other.begun()
    assert term == first and abs(time.time_ns() - at_ns) < MINUTE_NS
    assert await other.begin(first, "b") > first


async def test_a_leader_whose_term_is_over_learns_it(client: Client) -> None:
    one, other = KvTerms(client, "audit"), KvTerms(client, "audit")
    first = await one.begin(0, "a")
    await one.prove(first)
    later = await other.begin(first, "b")
    with pytest.raises(Fenced, match=f"term {later} leads"):
        await one.watch(first)
    await other.prove(later)
