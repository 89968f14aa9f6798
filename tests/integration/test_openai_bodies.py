"""Bodies of requests that never come, or that cannot be changed."""

import asyncio
from pathlib import Path

from tests.integration.gateway_world import gateway_world
from tests.integration.openai_replica import running
from tests.integration.openai_world import CHAT, add_replicas, error_of, model_world
from tests.integration.test_openai_hostile import SAYS_S, connected, head
from tests.integration.test_openai_named_models import deployed


async def test_a_body_that_never_begins_is_a_408_and_frees_its_place(tmp_path: Path) -> None:
    async with (
        model_world(tmp_path, model_body_ms=300) as (world, _),
        connected(world) as (reader, writer),
    ):
        writer.write(head("content-type: application/json", "content-length: 10"))
        async with asyncio.timeout(SAYS_S):
            assert b" 408 " in await reader.readline()


async def test_a_field_s_name_that_is_no_utf_8_is_a_400(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world, running() as replica:
        await deployed(world, "m", served_name="Org/M")
        await add_replicas(world, "m", replica)
        body = b'{"model": "m", "messages": [], "\xff": 1}'
        async with world.session.post(world.url + CHAT, data=body) as response:
            assert "not valid JSON" in (await error_of(response, 400))["message"]
