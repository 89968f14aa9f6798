"""The streams AUDIT and AUDIT_HEADS hold every event once and in order, whatever process dies.

The server and the keys are real. No other history is ever published.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from nats.aio.client import Client
from nats.errors import Error as NatsError

from libs.common import subjects
from libs.common.errors import Corrupt, Unavailable
from libs.common.transport.connection_nats import connect
from libs.common.transport.stream_nats import NatsStream
from libs.embedded.servers import Servers, start_servers
from services.audit.export.publisher import Publisher
from services.audit.service import Audit
from services.audit.store.store import Store
from tests.integration.audit_world import entries, entry, tamper
from tests.integration.test_embedded_permissions import World
from tests.natsserver import NatsServer

MAX_BYTES = 4 << 20
SOON_S = 20.0
# Two facts each.
PER_COMMIT = 2


class Publishing:
    """An archive that the test fills, with a publisher that is killed and started again."""

    def __init__(self, world: "World | OpenWorld", folder: Path) -> None:
        self.world = world
        self.url = f"sqlite:///{folder / 'audit.db'}"
        self.audit = Audit(None, Store(self.url), None)  # type: ignore[arg-type]
        self.running: list[asyncio.Task[None]] = []

    async def archive(self, first: int, last: int) -> None:
        await self.audit._archive(entries(first, last))

    async def stream(self, max_bytes: int = MAX_BYTES) -> NatsStream:
        client = await self.world.client("audit")
        return NatsStream(
            client=client,
            name=subjects.AUDIT_STREAM,
            subject=subjects.AUDIT_EVENTS,
            replicas=1,
            max_bytes=max_bytes,
        )

    async def begin(self, max_bytes: int = MAX_BYTES) -> Publisher:
        publisher = Publisher(
            Store(self.url), await self.stream(max_bytes), "c1", self.audit.beyond
        )
        self.running.append(asyncio.create_task(publisher.run()))
        return publisher

    async def kill(self) -> None:
        for task in self.running:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        self.running = []

    async def published(self, count: int) -> list[str]:
        """Return the ids of all events in the stream, once there are `count`."""
        stream = await self.stream()
        async with asyncio.timeout(SOON_S):
            while not await self._has(stream, count):
                await asyncio.sleep(0.02)
        return [json.loads(data)["id"] for _, data in await self.stored()]

    async def _has(self, stream: NatsStream, count: int) -> bool:
        with suppress(Unavailable):
            last = await stream.last()
            return last is not None and last.seq >= count
        return False

    async def stored(self) -> list[tuple[int, bytes]]:
        """Return the events that a consumer with an operator's key reads."""
        js = (await self.world.client("operator")).jetstream()
        state = (await js.stream_info(subjects.AUDIT_STREAM)).state
        found = [
            await js.get_msg(subjects.AUDIT_STREAM, seq=seq)
            for seq in range(state.first_seq, state.last_seq + 1)
        ]
        return [(message.seq or 0, message.data or b"") for message in found]


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    started = start_servers(tmp_path, log_bytes=64 << 20)
    yield started
    started.stop()


@pytest.fixture
async def publishing(servers: Servers, tmp_path: Path) -> AsyncIterator[Publishing]:
    world = World(servers)
    made = Publishing(world, tmp_path)
    await made.audit.open()
    yield made
    await made.kill()
    for client in world.clients.values():
        await client.close()


def ids(first: int, last: int) -> list[str]:
    return [f"{seq}-{position}" for seq in range(first, last + 1) for position in range(PER_COMMIT)]


async def test_every_event_is_published_once_and_in_order_as_the_archive_grows(
    publishing: Publishing,
) -> None:
    await publishing.archive(1, 300)
    await publishing.begin()
    assert await publishing.published(600) == ids(1, 300)
    await publishing.archive(301, 310)
    assert await publishing.published(620) == ids(1, 310)
    event = json.loads((await publishing.stored())[619][1])
    assert (event["specversion"], event["source"], event["type"]) == (
        "1.0",
        "c1",
        "io.muster.job.stop_ordered",
    )
    assert event["chainhash"] == publishing.audit.store.between(310, 310)[0].hash


async def test_a_publisher_that_is_killed_again_and_again_loses_and_doubles_nothing(
    publishing: Publishing,
) -> None:
    for begin in range(1, 2_001, 100):
        await publishing.begin()
        await publishing.archive(begin, begin + 99)
        await asyncio.sleep(0.003 * (begin % 7))
        await publishing.kill()
    await publishing.begin()
    assert await publishing.published(4_000) == ids(1, 2_000)


async def test_two_publishers_store_each_event_once(publishing: Publishing) -> None:
    await publishing.begin()
    await publishing.begin()
    await publishing.archive(1, 400)
    assert await publishing.published(800) == ids(1, 400)


async def test_a_stream_that_is_full_drops_its_oldest_and_goes_on(publishing: Publishing) -> None:
    await publishing.begin(max_bytes=64 << 10)
    await publishing.archive(1, 1_000)
    found = await publishing.published(2_000)
    assert 10 < len(found) < 500
    assert found == ids(1, 1_000)[-len(found) :]


async def test_rewritten_archive_is_not_published(
    publishing: Publishing,
) -> None:
    publisher = await publishing.begin()
    await publishing.archive(1, 9)
    await publishing.published(18)
    await publishing.kill()
    tamper(publishing.url, "delete from commits", "delete from facts")
    publishing.audit.store.head()
    await publishing.audit._archive([*entries(1, 4), entry(5, padding=1), *entries(6, 12)])
    with pytest.raises(Corrupt, match="another hash than the archive"):
        await publisher._follow()
    assert await publishing.published(18) == ids(1, 9)


async def test_publisher_waits_for_an_archive_behind_the_stream(publishing: Publishing) -> None:
    await publishing.begin()
    await publishing.archive(1, 9)
    await publishing.published(18)
    await publishing.kill()
    tamper(publishing.url, "delete from commits where seq > 5", "delete from facts where seq > 5")
    publishing.audit.store.head()
    publishing.audit.archived = 5
    await publishing.begin()
    await asyncio.sleep(0.2)
    await publishing.archive(6, 12)
    assert await publishing.published(24) == ids(1, 12)


async def test_only_audit_publishes_to_its_streams(publishing: Publishing) -> None:
    await (await publishing.stream()).make()
    for name in ("scheduler", "quota", "gateway-a", "operator", "trimmer"):
        client = await publishing.world.client(name)
        for subject in (subjects.AUDIT_EVENTS, subjects.AUDIT_HEADS):
            await client.publish(subject, b"forged")
        for verb in ("DELETE", "PURGE", "UPDATE"):
            with pytest.raises(NatsError):
                await client.request(
                    f"$JS.API.STREAM.{verb}.{subjects.AUDIT_STREAM}", b"{}", timeout=0.1
                )
    assert await (await publishing.stream()).last() is None


async def test_a_head_is_stored_once_however_often_it_is_sent(publishing: Publishing) -> None:
    client = await publishing.world.client("audit")
    heads = NatsStream(
        client=client,
        name=subjects.HEADS_STREAM,
        subject=subjects.AUDIT_HEADS,
        replicas=1,
        max_bytes=MAX_BYTES,
    )
    await heads.make()
    await heads.make()
    for _ in range(3):
        await heads.put("signature", b"head")
    last = await heads.last()
    assert last is not None and (last.seq, last.data) == (1, b"head")


class OpenWorld:
    """A server without keys that can be killed and whose streams can be deleted."""

    def __init__(self, folder: Path) -> None:
        self.server = NatsServer(folder)
        self.server.start()
        self.clients: dict[str, Client] = {}

    async def client(self, name: str) -> Client:
        if name not in self.clients:
            self.clients[name] = await connect([self.server.url], name)
        return self.clients[name]


@pytest.fixture
async def openly(tmp_path: Path) -> AsyncIterator[Publishing]:
    world = OpenWorld(tmp_path)
    made = Publishing(world, tmp_path)
    await made.audit.open()
    yield made
    await made.kill()
    for client in world.clients.values():
        await client.close()
    world.server.kill()


async def test_a_stream_that_is_lost_is_written_again_under_the_same_numbers(
    openly: Publishing,
) -> None:
    await openly.begin()
    await openly.archive(1, 50)
    await openly.published(100)
    before = await openly.stored()
    await (await openly.world.client("person")).jetstream().delete_stream(subjects.AUDIT_STREAM)
    await openly.archive(51, 52)
    await openly.published(104)
    assert (await openly.stored())[:100] == before


async def test_emptied_stream_is_reported_and_not_written_to(openly: Publishing) -> None:
    publisher = await openly.begin()
    await openly.archive(1, 50)
    await openly.published(100)
    await openly.kill()
    await (await openly.world.client("person")).jetstream().purge_stream(subjects.AUDIT_STREAM)
    with pytest.raises(Corrupt, match="delete the stream AUDIT"):
        await publisher._follow()


async def test_publisher_continues_when_a_killed_server_is_back(openly: Publishing) -> None:
    assert isinstance(openly.world, OpenWorld)
    await openly.begin()
    for begin in range(1, 1_000, 100):
        await openly.archive(begin, begin + 99)
        if begin in (201, 601):
            openly.world.server.kill()
            await asyncio.sleep(0.1)
            openly.world.server.start()
    assert await openly.published(2_000) == ids(1, 1_000)
