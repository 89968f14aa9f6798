"""The client's locks over real HTTP and a real scheduler."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from libs.client.asynchronous.client import AsyncClient
from libs.client.errors import Conflict, NotFound
from tests.integration.gateway_world import KEY, World, gateway_world
from tests.integration.test_gateway_locks import deciding


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with gateway_world(tmp_path) as found, deciding(found):
        yield found


async def test_a_lock_is_held_in_a_block_and_free_after_it(world: World) -> None:
    async with AsyncClient(world.url, KEY) as client:
        async with await client.locks.acquire("data", ttl=5) as lock:
            assert 0 < lock.left_s <= 5
            assert (await client.locks.get("data")).token == lock.token
            with pytest.raises(Conflict):
                await client.locks.acquire("data")
            await lock.renew()
        assert [each async for each in client.locks.list()] == []
        with pytest.raises(NotFound):
            await client.locks.get("data")


async def test_a_client_waits_for_its_turn(world: World) -> None:
    async with AsyncClient(world.url, KEY) as client:
        first = await client.locks.acquire("data", ttl=5)
        waits = asyncio.create_task(client.locks.acquire("data", wait="1m"))
        while (await client.locks.get("data")).waiting == 0:
            await asyncio.sleep(0.02)
        await first.release()
        second = await waits
        assert second.token > first.token
        with pytest.raises(Conflict, match="released"):
            await first.renew()


async def test_a_lock_that_is_granted_after_a_long_wait_has_its_time(world: World) -> None:
    async with AsyncClient(world.url, KEY) as client:
        first = await client.locks.acquire("data", ttl="1m")
        waits = asyncio.create_task(client.locks.acquire("data", ttl=5, wait="1m"))
        while (await client.locks.get("data")).waiting == 0:
            await asyncio.sleep(0.02)
        await asyncio.sleep(2.5)
        await first.release()
        second = await waits
        assert not second.is_late and second.left_s > 3
        await second.release()
