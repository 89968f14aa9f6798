"""One node's real key asks without end: the other nodes' secrets, uploads and heartbeats are
answered all the same.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from nats.aio.client import Client

from libs.common import subjects
from libs.common.messages.secret_messages import SecretAnswer, SecretAsk
from libs.common.model import JobId
from libs.common.state.cluster import Cluster
from libs.common.transport import per_sender
from libs.common.transport.bus_nats import NatsBus
from libs.common.transport.connection_nats import connect
from libs.common.transport.per_sender import Places, Rate
from libs.common.transport.uploads import UploadAsk
from libs.embedded.permissions import Fleet
from libs.embedded.servers import Servers, start_servers
from services.api_gateway.agents.secret_answers import SecretAnswers
from services.api_gateway.agents.upload_answers import UploadAnswers

ANSWER_S = 5.0
FLOOD = 1_500


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[Servers]:
    found = start_servers(tmp_path, fleet=Fleet(nodes=("1", "2")), log_bytes=64 << 20)
    yield found
    found.stop()


async def client(servers: Servers, name: str) -> Client:
    return await connect(servers.urls, name, servers.seed(name))


@pytest.mark.parametrize("what", ["secrets", "uploads"])
async def test_bogus_asks_of_one_node_keep_no_other_node_waiting(
    servers: Servers, what: str
) -> None:
    """Each bogus ask names a job that is not there, for which a gateway waits 2 s before it
    refuses.
    """
    gateway, hostile, honest = [
        await client(servers, name) for name in ("gateway-a", "node-1", "node-2")
    ]
    if what == "secrets":
        await SecretAnswers(Cluster, NatsBus(gateway), None).listen()  # type: ignore[arg-type]
        theirs, own = subjects.ask_secrets("1"), subjects.ask_secrets("2")
    else:
        await UploadAnswers(Cluster, NatsBus(gateway), None).listen()  # type: ignore[arg-type]
        theirs, own = subjects.ask_uploads("1"), subjects.ask_uploads("2")
    job_id = JobId("none")
    bogus = SecretAsk(job_id, 1, bytes(32)) if what == "secrets" else UploadAsk(job_id, 1)
    ask = msgspec.msgpack.encode(bogus)
    for _ in range(FLOOD):
        await hostile.publish(theirs, ask, reply="_INBOX_node-1.x")
    await hostile.flush()
    answer = await NatsBus(honest).request(own, b"\x00", ANSWER_S)  # refused at once: it is no ask
    assert answer
    if what == "secrets":
        assert msgspec.msgpack.decode(answer, type=SecretAnswer).refused
    for each in (gateway, hostile, honest):
        await each.close()


async def test_heartbeats_without_end_of_one_node_are_dropped_and_others_are_read(
    servers: Servers,
) -> None:
    scheduler, hostile, honest = [
        await client(servers, name) for name in ("scheduler", "node-1", "node-2")
    ]
    read: list[str] = []

    async def handle(subject: str, data: bytes) -> bytes:
        read.append(subject)
        return b"lease"

    bounded = Rate(handle)
    await NatsBus(scheduler).subscribe(f"{subjects.HEARTBEAT}.*", bounded)
    for _ in range(FLOOD):
        await hostile.publish(subjects.heartbeat("1"), b"x")
    await hostile.flush()
    assert await NatsBus(honest).request(subjects.heartbeat("2"), b"x", ANSWER_S) == b"lease"
    assert bounded.dropped > FLOOD // 2
    assert read.count(subjects.heartbeat("1")) < FLOOD // 2
    for each in (scheduler, hostile, honest):
        await each.close()


async def test_a_sender_s_places_are_its_own_and_come_back() -> None:
    going, begun = asyncio.Event(), list[str]()

    async def handle(subject: str, data: bytes) -> bytes:
        begun.append(subject)
        await going.wait()
        return b""

    places = Places(handle)
    held = per_sender.AT_ONCE + per_sender.WAITING_MAX
    tasks = [asyncio.create_task(places("ask.a", b"")) for _ in range(held)]
    await asyncio.sleep(0)
    assert begun == ["ask.a"] * per_sender.AT_ONCE
    assert await places("ask.a", b"") is None
    other = asyncio.create_task(places("ask.b", b""))
    await asyncio.sleep(0)
    assert begun[-1] == "ask.b"
    going.set()
    assert await asyncio.gather(*tasks, other) == [b""] * (held + 1)
    assert (places.held, places.free, places.dropped) == ({}, {}, 1)


async def test_a_sender_that_pauses_is_read_again() -> None:
    async def handle(subject: str, data: bytes) -> bytes:
        return b"read"

    rate = Rate(handle)
    found = [await rate("beat.a", b"") for _ in range(int(per_sender.BURST) + 20)]
    assert found[: int(per_sender.BURST)] == [b"read"] * int(per_sender.BURST)
    assert None in found
    at_s, left = rate.left["a"]
    rate.left["a"] = at_s - 1, left
    assert await rate("beat.a", b"") == b"read"
    assert await rate("beat.b", b"") == b"read"
