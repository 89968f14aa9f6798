"""Bodies of one tenant's requests to any route leave memory for those of others."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.integration.gateway_world import KEY, gateway_world
from tests.integration.test_openai_failures import until
from tests.integration.test_openai_hostile import connected

pytestmark = pytest.mark.attack

BYTES: Final = 200_000
# Memory for bodies, in bodies of that size; one tenant gets 4/5 of it.
MEMORY: Final = 10


async def test_unfinished_bodies_of_one_tenant_leave_memory_for_those_of_others(
    tmp_path: Path,
) -> None:
    head = f"POST /v1/jobs HTTP/1.1\r\nhost: x\r\ncontent-length: {BYTES}\r\n"
    head += f"authorization: Bearer {KEY}\r\n\r\n"
    async with (
        gateway_world(tmp_path, model_bodies_bytes=MEMORY * BYTES) as world,
        AsyncExitStack() as stack,
    ):
        share = world.gateway.shares.bytes
        await world.ask("PUT", "/v1/tenants/physics", 201, json={})
        ada = await stack.enter_async_context(world.as_("member", "ada", "physics"))
        for number in range(1, MEMORY + 1):
            reader, writer = await stack.enter_async_context(connected(world))
            writer.write(head.encode() + b"{" * (BYTES - 1))
            if number <= MEMORY * 4 // 5:
                await until(lambda most=number: share.held == most * (BYTES - 1))
            else:
                async with asyncio.timeout(5.0):
                    assert (await reader.readline()).split()[1] == b"429"
        assert share.held < MEMORY * BYTES
        await ada.submit(name="x" * 100)
        assert "need as much of this gateway's memory" in str(
            await world.ask("POST", "/v1/jobs", 429, data=b" " * BYTES)
        )
        await stack.aclose()
        await until(lambda: share.held == 0)
