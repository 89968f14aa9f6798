"""A tenant whose gRPC calls keep many bytes: it is refused before memory runs out, and others are
served.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest_asyncio

from libs.rpc.messages import class_of
from tests.integration.rpc_world import Client, RpcWorld, method_of, rpc_world

BYTES = 2 << 20
PIECE = b"x" * (600 << 10)


@pytest_asyncio.fixture
async def rpc(tmp_path: Path) -> AsyncIterator[RpcWorld]:
    async with rpc_world(tmp_path, gateway_grpc_bytes=BYTES) as found:
        yield found


async def another_tenant(rpc: RpcWorld) -> Client:
    await rpc.world.ask("PUT", "/v1/tenants/other", 201, json={})
    body = {"user": "eve", "tenant": "other", "role": "member"}
    made = await rpc.world.ask("POST", "/v1/keys", 201, json=body)
    return rpc.client.with_key(made["key"])


async def test_one_tenant_cannot_keep_the_bytes_of_all_calls(rpc: RpcWorld) -> None:
    other = await another_tenant(rpc)
    message = class_of(method_of("Jobs/SendUpload").input_type)
    open_until = asyncio.Event()

    async def pieces(number: int) -> AsyncIterator[Any]:
        yield message(sha256=f"{number:064x}", data=PIECE)
        await open_until.wait()

    held = [rpc.client.call("Jobs/SendUpload", asks=pieces(number)) for number in range(3)]
    async with asyncio.timeout(20):
        while rpc.server.calls.bytes.held < 3 * len(PIECE):
            await asyncio.sleep(0.01)
    error = await rpc.client.fails("Jobs/SendUpload", asks=pieces(9))
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "as many bytes at this gateway" in (error.details() or "")
    assert rpc.server.calls.bytes.held <= BYTES
    assert (await other.call("Nodes/WhoAmI")).user == "eve"
    open_until.set()
    for each in held:
        each.cancel()
    await rpc.quiet()
    assert rpc.server.calls.bytes.held == 0


async def test_an_answer_for_which_there_is_no_room_ends_its_call(rpc: RpcWorld) -> None:
    rpc.server.calls.bytes.most = 6_000
    for number in range(20):
        await rpc.world.submit(name=f"job-{number}")
    error = await rpc.client.fails("Jobs/ListJobs")
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (await rpc.client.call("Nodes/WhoAmI")).user
    await rpc.quiet()
    assert rpc.server.calls.bytes.held == 0
