"""Bodies of one tenant's requests to any route leave memory for those of others."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import pytest

from services.api_gateway.http.bounded_body import UNCOUNTED_BYTES
from tests.integration.gateway_world import KEY, gateway_world
from tests.integration.test_openai_failures import until
from tests.integration.test_openai_hostile import connected

pytestmark = pytest.mark.attack

BYTES: Final = 200_000
# Memory for bodies, in bodies of that size; one tenant gets 4/5 of it.
MEMORY: Final = 10


async def test_a_tenant_at_its_share_can_still_free_resources(tmp_path: Path) -> None:
    small, large = {"user": "u" * 100}, b" " * UNCOUNTED_BYTES + b'{"user": "ada"}'
    async with gateway_world(tmp_path, model_bodies_bytes=MEMORY * BYTES) as world:
        first, second = [await world.submit() for _ in range(2)]
        await world.ask("POST", "/v1/deployments", 201, json={"name": "chat", "command": ["a"]})
        share = world.gateway.shares.bytes
        assert not share.take(first["tenant"], MEMORY * BYTES * 4 // 5)
        held = share.held
        await world.ask("POST", "/v1/jobs", 429, json={"command": ["true"], **small})
        await world.ask("POST", f"/v1/jobs/{first['id']}/cancel", 429, data=large)
        await world.ask("POST", f"/v1/jobs/{first['id']}/cancel", 202, json=small)
        await world.ask("POST", f"/v1/jobs/{second['id']}/kill", 202, json=small)
        holder = {"holder": "h" * 60}
        await world.ask("POST", "/v1/locks/none/renew", 404, json=holder)
        await world.ask("POST", "/v1/locks/none/release", 404, json=holder)
        await world.ask("DELETE", "/v1/deployments/chat", 202, json=small)
        assert share.held == held


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
