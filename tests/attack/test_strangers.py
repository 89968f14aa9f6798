"""Clients without a key have one share of a gateway together, like one tenant."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.attack.serving_world import with_files
from tests.integration.gateway_world import gateway_world
from tests.integration.test_openai_hostile import connected, said

pytestmark = pytest.mark.attack

PUBLIC = ("/join", "/v1/session")
# Half of the files that the gateway may have open.
PLACES = 64


def head(path: str, length: int) -> bytes:
    return f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n".encode()


@pytest.mark.parametrize("path", PUBLIC)
async def test_a_body_without_a_key_is_small_and_its_time_counts_in_the_share_of_strangers(
    tmp_path: Path, path: str
) -> None:
    async with gateway_world(tmp_path) as world, connected(world) as (reader, writer):
        writer.write(head(path, 1 << 20) + b"x" * (17 << 10))
        assert (await said(reader)).startswith("HTTP/1.1 413")
        assert "" in world.gateway.time_shares.shares


async def test_requests_without_a_key_leave_places_for_those_with_one(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        with with_files(2 * PLACES):
            world = await stack.enter_async_context(gateway_world(tmp_path))
        statuses = []
        for number in range(PLACES - 10):
            reader, writer = await stack.enter_async_context(connected(world))
            writer.write(head("/join", 1_000) + b"{")
            if number > PLACES * 4 // 5 + 1:
                statuses.append((await reader.readline()).split()[1])
        assert set(statuses) == {b"429"}
        async with asyncio.timeout(5.0):
            await world.ask("GET", "/livez")
            await world.ask("GET", "/v1/jobs")
