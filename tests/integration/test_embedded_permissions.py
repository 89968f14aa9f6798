"""The permissions on a real nats-server: what must work works, what must be refused is refused.

Each process is a role's own nkey; a refusal is a message that never arrives, and a report to the
one who tried.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client
from nats.errors import Error as NatsError

from libs.common import subjects as s
from libs.common.errors import Unavailable
from libs.common.transport.bus_nats import NatsBus
from libs.common.transport.connection_nats import connect
from libs.common.transport.log import AppendUnknown, Entry
from libs.common.transport.log_jetstream import JetStreamLog, create_stream
from libs.embedded.permissions import Fleet
from libs.embedded.servers import Servers, start_servers

LOG_BYTES = 64 << 20
SETTLE_S = 0.1
IDS = ("1", "2")
NODES = ("node-1", "node-2")


@pytest.fixture(params=[True, False], ids=["isolated", "together"], scope="module")
def fleet(request: pytest.FixtureRequest) -> Fleet:
    return Fleet(nodes=IDS, gateways=("a", "b"), isolated=request.param)


@pytest.fixture
def servers(fleet: Fleet, tmp_path: Path) -> Iterator[Servers]:
    started = start_servers(tmp_path, fleet=fleet, log_bytes=LOG_BYTES)
    yield started
    started.stop()


class World:
    """Connections by name, made when first asked for."""

    def __init__(self, servers: Servers) -> None:
        self.servers = servers
        self.clients: dict[str, Client] = {}

    async def client(self, name: str) -> Client:
        if name not in self.clients:
            self.clients[name] = await connect(self.servers.urls, name, self.servers.seed(name))
        return self.clients[name]

    async def log(self, name: str) -> JetStreamLog:
        return JetStreamLog(await self.client(name))

    async def bus(self, name: str) -> NatsBus:
        return NatsBus(await self.client(name))

    async def flush(self) -> None:
        for client in self.clients.values():
            await client.flush()


@pytest.fixture
async def world(servers: Servers) -> AsyncIterator[World]:
    made = World(servers)
    await create_stream(await made.client("scheduler"), 1, LOG_BYTES // 2)
    yield made
    for client in made.clients.values():
        await client.close()


WRITERS = {
    "scheduler": s.SCHEDULER,
    "quota": s.QUOTA,
    "gateway-a": s.gateway("a"),
    "gateway-b": s.gateway("b"),
} | {f"node-{each}": s.node(each) for each in IDS}
READERS = ("scheduler", "quota", "audit", "gateway-a", "operator")


async def test_each_writer_may_publish_its_own_subject(world: World) -> None:
    for name, subject in WRITERS.items():
        assert await (await world.log(name)).append(subject, name.encode(), 0) > 0


async def test_no_writer_may_publish_another_writers_subject(world: World) -> None:
    for name, own in WRITERS.items():
        client = await world.client(name)
        for subject in [*WRITERS.values(), "facts.node.9", "facts.other"]:
            if subject != own:
                await client.publish(subject, b"forged")
    for name in ("audit", "operator", "trimmer"):
        await (await world.client(name)).publish(s.SCHEDULER, b"forged")
    await world.flush()
    assert await (await world.log("audit")).bounds() in ((1, 0), (0, 0))


async def test_writer_reads_the_last_message_of_its_subject(world: World, fleet: Fleet) -> None:
    for name, subject in WRITERS.items():
        if fleet.isolated and name in NODES:
            continue
        log = await world.log(name)
        assert await log.last(subject) is None
        seq = await log.append(subject, b"x", 0)
        assert await log.last(subject) == Entry(seq, subject, b"x")


async def test_isolated_node_reads_only_the_last_message_of_its_subject(
    world: World, fleet: Fleet
) -> None:
    if not fleet.isolated:
        pytest.skip("nodes that share an account read by sequence")
    await (await world.log("node-2")).append(s.node("2"), b"theirs", 0)
    await (await world.log("node-1")).append(s.node("1"), b"mine", 0)
    client = await world.client("node-1")
    own = await client.request("$JS.API.DIRECT.GET.FACTS.facts.node.1", b"", timeout=2)
    assert own.data == b"mine"
    for subject in (
        "$JS.API.DIRECT.GET.FACTS.facts.node.2",
        "$JS.API.DIRECT.GET.FACTS",
        "$JS.API.STREAM.MSG.GET.FACTS",
    ):
        with pytest.raises(NatsError):
            await client.request(subject, b'{"seq":1}', timeout=SETTLE_S)


async def test_readers_read_the_whole_log_as_it_grows(world: World) -> None:
    writer = await world.log("quota")
    await writer.append(s.QUOTA, b"first", 0)
    for name in READERS:
        feed = (await world.log(name)).read(0)
        assert (await anext(feed))[0].data == b"first"
        await feed.aclose()  # type: ignore[attr-defined]


async def test_a_reader_keeps_up_with_more_than_one_flow_control_window(world: World) -> None:
    writer, expected = await world.log("quota"), 0
    for _ in range(60):
        expected = await writer.append(s.QUOTA, bytes(200 << 10), expected)
    seen = 0
    async for batch in (await world.log("audit")).read(0):
        seen += len(batch)
        if seen == 60:
            break
    assert seen == 60


async def test_node_cannot_read_the_log(world: World) -> None:
    client = await world.client("node-1")
    with pytest.raises(Unavailable):
        await JetStreamLog(client).bounds()
    for subject in (
        "$JS.API.CONSUMER.CREATE.FACTS",
        "$JS.API.CONSUMER.CREATE.FACTS.x",
        "$JS.API.STREAM.INFO.FACTS",
    ):
        with pytest.raises(NatsError):
            await client.request(subject, b"{}", timeout=SETTLE_S)
    heard = await _heard(
        world, listener="node-1", pattern=s.ALL_FACTS, speaker="scheduler", subject=s.SCHEDULER
    )
    assert heard == []


async def test_no_process_may_purge_delete_or_change_the_log(world: World) -> None:
    await (await world.log("scheduler")).append(s.SCHEDULER, b"x", 0)
    for name in (*READERS, *NODES):
        client = await world.client(name)
        for verb in ("STREAM.PURGE", "STREAM.DELETE", "STREAM.UPDATE", "STREAM.MSG.DELETE"):
            with pytest.raises(NatsError):
                await client.request(f"$JS.API.{verb}.FACTS", b'{"seq":1}', timeout=SETTLE_S)
    assert await (await world.log("audit")).bounds() == (1, 1)


async def test_trimmer_may_only_purge_the_log(world: World) -> None:
    writer, expected = await world.log("scheduler"), 0
    for _ in range(3):
        expected = await writer.append(s.SCHEDULER, b"x", expected)
    client = await world.client("trimmer")
    for verb in ("STREAM.DELETE", "STREAM.UPDATE", "STREAM.MSG.DELETE"):
        with pytest.raises(NatsError):
            await client.request(f"$JS.API.{verb}.FACTS", b'{"seq":1}', timeout=SETTLE_S)
    await client.publish(s.SCHEDULER, b"forged")
    await (await world.log("trimmer")).purge({s.SCHEDULER: 3})
    assert await (await world.log("audit")).bounds() == (3, 3)


async def test_trimmer_learns_the_positions_of_the_services_and_the_archive(
    world: World,
) -> None:
    async def answer(_: str, __: bytes) -> bytes:
        return b"7"

    for asker, answerer, subject in (
        ("trimmer", "scheduler", s.ask_scheduler("position")),
        ("trimmer", "quota", s.ask_quota("position")),
        ("gateway-a", "audit", s.ask_audit("commits")),
        ("scheduler", "audit", s.ask_audit("commits")),
    ):
        await (await world.bus(answerer)).subscribe(subject, answer)
        assert await (await world.bus(asker)).request(subject, b"", 2.0) == b"7"


async def test_only_the_scheduler_makes_streams(world: World) -> None:
    await (await world.client("scheduler")).jetstream().create_key_value(bucket=s.OUTPUT_BUCKET)
    for name in ("quota", "audit", "gateway-a", "operator", *NODES):
        with pytest.raises(NatsError):
            await (await world.client(name)).request(
                "$JS.API.STREAM.CREATE.KV_OUTPUT", b"{}", timeout=SETTLE_S
            )


async def test_gateway_reads_the_output_that_a_node_stored(world: World) -> None:
    await (await world.client("scheduler")).jetstream().create_key_value(bucket=s.OUTPUT_BUCKET)
    await (
        (await world.client("node-1")).jetstream().publish("$KV.OUTPUT.1.job-1.1.0.stdout", b"tail")
    )
    bucket = await (await world.client("gateway-a")).jetstream().key_value(s.OUTPUT_BUCKET)
    assert (await bucket.get("1.job-1.1.0.stdout")).value == b"tail"


async def test_deciding_services_read_a_gateways_snapshots(world: World) -> None:
    await (await world.client("scheduler")).jetstream().create_object_store(s.SNAPSHOT_BUCKET)
    store = await (await world.client("gateway-a")).jetstream().object_store(s.SNAPSHOT_BUCKET)
    await store.put("state", bytes(300 << 10))
    await store.put("state", bytes(400 << 10))
    for name in ("scheduler", "quota", "gateway-b"):
        found = await (
            await (await world.client(name)).jetstream().object_store(s.SNAPSHOT_BUCKET)
        ).get("state")
        assert len(found.data or b"") == 400 << 10


QUESTIONS = [
    ("node-1", s.heartbeat("1"), "scheduler", s.heartbeat("*")),
    ("node-1", s.desired("1"), "scheduler", s.desired("*")),
    ("node-1", s.roster("1"), "scheduler", s.roster("*")),
    ("gateway-a", s.ask_scheduler("why"), "scheduler", s.ask_scheduler(">")),
    ("operator", s.ask_scheduler("why"), "scheduler", s.ask_scheduler(">")),
    ("gateway-a", s.ask_node("1", "output"), "node-1", s.ask_node("1", ">")),
]


@pytest.mark.parametrize(("asker", "subject", "answerer", "pattern"), QUESTIONS)
async def test_permitted_request_is_answered(
    world: World, asker: str, subject: str, answerer: str, pattern: str
) -> None:
    async def answer(subject: str, data: bytes) -> bytes:
        return subject.encode() + data

    await (await world.bus(answerer)).subscribe(pattern, answer)
    await world.flush()
    assert await (await world.bus(asker)).request(subject, b"!", 2.0) == subject.encode() + b"!"


async def test_node_receives_its_own_orders(world: World) -> None:
    assert await _heard(
        world=world,
        listener="node-1",
        pattern=s.orders("1"),
        speaker="scheduler",
        subject=s.orders("1"),
    ) == [s.orders("1")]


REFUSED_EARS = [
    ("node-1", s.orders("2"), "scheduler", s.orders("2")),
    ("node-1", s.orders("*"), "scheduler", s.orders("2")),
    ("node-1", ">", "scheduler", s.orders("2")),
    ("node-1", s.heartbeat("*"), "node-2", s.heartbeat("2")),
    ("node-1", s.ask_node("2", ">"), "gateway-a", s.ask_node("2", "stdin")),
    ("gateway-a", s.orders("*"), "scheduler", s.orders("1")),
]


@pytest.mark.parametrize(("listener", "pattern", "speaker", "subject"), REFUSED_EARS)
async def test_no_process_receives_messages_for_another(
    world: World, listener: str, pattern: str, speaker: str, subject: str
) -> None:
    heard = await _heard(
        world, listener=listener, pattern=pattern, speaker=speaker, subject=subject
    )
    assert heard == []


REFUSED_TONGUES = [
    ("node-1", s.orders("1"), "node-1", s.orders("1")),
    ("node-1", s.orders("2"), "node-2", s.orders("2")),
    ("node-1", s.heartbeat("2"), "scheduler", s.heartbeat("*")),
    ("node-1", s.desired("2"), "scheduler", s.desired("*")),
    ("node-1", s.roster("2"), "scheduler", s.roster("*")),
    ("node-1", s.ask_node("2", "output"), "node-2", s.ask_node("2", ">")),
    ("node-1", s.ask_scheduler("why"), "scheduler", s.ask_scheduler(">")),
    ("node-1", s.ask_alive("scheduler"), "scheduler", s.ask_alive("scheduler")),
    ("gateway-a", s.take_over("scheduler"), "scheduler", s.take_over("scheduler")),
    ("gateway-a", s.orders("1"), "node-1", s.orders("1")),
    ("gateway-a", s.heartbeat("1"), "scheduler", s.heartbeat("*")),
    ("quota", s.orders("1"), "node-1", s.orders("1")),
    ("operator", s.orders("1"), "node-1", s.orders("1")),
]


@pytest.mark.parametrize(("speaker", "subject", "listener", "pattern"), REFUSED_TONGUES)
async def test_no_process_publishes_on_subjects_of_another(
    world: World, speaker: str, subject: str, listener: str, pattern: str
) -> None:
    heard = await _heard(
        world, listener=listener, pattern=pattern, speaker=speaker, subject=subject
    )
    assert heard == []


async def test_answer_cannot_be_directed_to_another_writers_facts(
    world: World, fleet: Fleet
) -> None:
    """An acknowledgement, a stored message and a scheduler's answer all go where the asker says:
    not out of its account.
    """
    if not fleet.isolated:
        pytest.skip("this is what isolation is for")
    node = await world.client("node-1")
    own = s.node("1")

    async def lease(_: str, __: bytes) -> bytes:
        return b"lease"

    await (await world.bus("scheduler")).subscribe(s.heartbeat("*"), lease)
    for target in (s.SCHEDULER, s.node("2"), s.orders("2")):
        for question in (own, f"$JS.API.DIRECT.GET.FACTS.{own}", s.heartbeat("1")):
            await node.publish(question, b"forged", reply=target)
    await world.flush()
    await asyncio.sleep(SETTLE_S)
    _, last = await (await world.log("audit")).bounds()
    stored = [await (await world.log("audit")).get(seq) for seq in range(1, last + 1)]
    assert [entry.subject for entry in stored if entry] == [own] * 3


async def test_answer_of_a_service_cannot_be_directed_to_the_log(world: World) -> None:
    """The scheduler may publish to the inboxes of those who may ask it, and has no
    `allow_responses`.
    """

    async def answer(_: str, __: bytes) -> bytes:
        return b"forged"

    await (await world.bus("scheduler")).subscribe(s.ask_scheduler(">"), answer)
    await world.flush()
    await (await world.client("gateway-a")).publish(s.ask_scheduler("why"), b"", reply=s.QUOTA)
    await world.flush()
    await asyncio.sleep(SETTLE_S)
    assert await (await world.log("quota")).last(s.QUOTA) is None


async def test_connection_without_a_key_is_refused(servers: Servers) -> None:
    with pytest.raises(NatsError):
        await nats.connect(servers.urls[0], allow_reconnect=False, max_reconnect_attempts=0)


async def test_cluster_of_three_servers_stores_three_replicas_of_the_log(tmp_path: Path) -> None:
    servers = start_servers(tmp_path, 3, Fleet(nodes=IDS, isolated=True), LOG_BYTES)
    world = World(servers)
    try:
        await create_stream(await world.client("scheduler"), 3, LOG_BYTES // 2)
        log = await world.log("node-1")
        seq = await _appended(log, s.node("1"))
        assert await (await world.log("audit")).get(seq) == Entry(seq, s.node("1"), b"x")
    finally:
        for client in world.clients.values():
            await client.close()
        servers.stop()


async def _appended(log: JetStreamLog, subject: str) -> int:
    for _ in range(20):
        try:
            return await log.append(subject, b"x", 0)
        except AppendUnknown:
            await asyncio.sleep(0.5)
    raise AssertionError("the log took nothing")


async def _heard(
    world: World, listener: str, pattern: str, speaker: str, subject: str
) -> list[str]:
    """The subjects that the listener gets of one message of the speaker's."""
    heard: list[str] = []

    async def note(subject: str, _: bytes) -> None:
        heard.append(subject)

    await (await world.bus(listener)).subscribe(pattern, note)
    await world.client(speaker)
    await world.flush()
    await (await world.bus(speaker)).publish(subject, b"x")
    await world.flush()
    await asyncio.sleep(SETTLE_S)
    return heard
