"""Attacks on gRPC: many streams at once, malformed messages to every method, a greedy tenant.

`make attack` opens 1,000 streams and sends malformed messages for MUSTER_TEST_SECONDS; `make test`
does a little of both.
"""

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import grpc
import pytest
import pytest_asyncio

from libs.common.open_share import OpenShare
from libs.rpc.messages import class_of
from services.api_gateway.rpc.methods import METHODS, Method
from tests.integration.rpc_world import SERVERS_FAULT, RpcWorld, method_of, rpc_world

pytestmark = pytest.mark.attack

SECONDS: Final = int(os.environ.get("MUSTER_TEST_SECONDS", "0"))
STREAMS: Final = 1_000 if SECONDS else 100
ROUNDS: Final = 1
CALL_S: Final = 1.0


@pytest_asyncio.fixture
async def rpc(tmp_path: Path) -> AsyncIterator[RpcWorld]:
    settings = {"followers_per_tenant": 2 * STREAMS, "followers_per_job": 2 * STREAMS}
    async with rpc_world(tmp_path, **settings) as found:
        yield found


async def test_many_streams_are_served_at_once(rpc: RpcWorld) -> None:
    job = await rpc.world.submit()
    names = ("Events/Watch", "Events/FollowEvents", "Jobs/WaitJob", "Jobs/FollowJob")
    streams = [
        rpc.client.call(names[number % 4], timeout=120, **_fields(names[number % 4], job["id"]))
        for number in range(STREAMS)
    ]
    await asyncio.gather(*(each.initial_metadata() for each in streams[0::4]))
    await asyncio.gather(*(each.initial_metadata() for each in streams[1::4]))
    firsts = await asyncio.gather(*(each.read() for each in streams[2::4]))
    assert {each.state for each in firsts} == {"pending"}
    again = await rpc.world.submit()
    followed = await asyncio.gather(*(each.read() for each in streams[1::4]))
    assert {each.fact["job_id"] for each in followed} == {again["id"]}
    assert (await rpc.client.call("Jobs/GetJob", ref=job["id"])).id == job["id"]
    for stream in streams:
        stream.cancel()
    await rpc.quiet()


def _fields(name: str, job_id: str) -> dict[str, str]:
    return {"ref": job_id} if name.startswith("Jobs/") else {}


def messages_of(method: Method, chance: random.Random) -> list[bytes]:
    """Malformed and odd messages: noise, a field's number with another type, deep nesting."""
    fields = class_of(method_of(f"{method.service}/{method.name}").input_type).DESCRIPTOR.fields
    numbers = [field.number for field in fields] or [1]
    key = chance.choice(numbers) << 3 | chance.randrange(8)
    text = chance.choice(
        (b"../keys", b"\x00", "ünïcödé".encode(), b"a" * 5_000, b"\xff\xfe", b"%2f")
    )
    return [
        chance.randbytes(chance.randrange(1, 64)),
        bytes((key & 0x7F | 0x80, key >> 7)) + chance.randbytes(chance.randrange(20)),
        b"\x0a" + bytes((len(text) & 0x7F | 0x80, len(text) >> 7)) + text,
        b"\x0a\x7f" * 200,
    ]


async def one(rpc: RpcWorld, method: Method, data: bytes) -> None:
    """Send a message, and look only for a fault of the server's."""
    name = f"{method.service}/{method.name}"
    asks: Any = iter([data]) if method.kind.streams_requests else data
    call = rpc.client.call(name, asks=asks, timeout=CALL_S)
    try:
        if method.kind.streams_answers:
            async with asyncio.timeout(CALL_S):
                while await call.read() is not grpc.aio.EOF:
                    pass
        else:
            await call
    except TimeoutError:
        call.cancel()
    except grpc.aio.AioRpcError as error:
        assert error.code() not in SERVERS_FAULT, f"{name}: {data!r}: {error}"


async def test_no_message_is_the_server_s_fault(
    rpc: RpcWorld, caplog: pytest.LogCaptureFixture
) -> None:
    chance, until, rounds = random.Random(7), time.monotonic() + SECONDS / 3, 0
    while rounds < ROUNDS or time.monotonic() < until:
        rounds += 1
        calls = [
            one(rpc, method, data) for method in METHODS for data in messages_of(method, chance)
        ]
        await asyncio.gather(*calls)
    assert not [record for record in caplog.records if "because of a bug" in record.getMessage()]
    await rpc.quiet()


async def test_one_tenant_leaves_calls_for_others(rpc: RpcWorld) -> None:
    rpc.server.calls.open = OpenShare(10)
    await rpc.world.ask("PUT", "/v1/tenants/other", 201, json={})
    body = {"user": "eve", "tenant": "other", "role": "member"}
    made = await rpc.world.ask("POST", "/v1/keys", 201, json=body)
    held = [rpc.client.call("Events/Watch") for _ in range(8)]
    await asyncio.gather(*(each.initial_metadata() for each in held))
    error = await rpc.client.fails("Nodes/WhoAmI")
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (await rpc.client.with_key(made["key"]).call("Nodes/WhoAmI")).user == "eve"
    for each in held:
        each.cancel()
    await rpc.quiet()
