"""The answers of a tenant's own server do not fill a gateway's memory: those of batches and events
that do not end count among the bytes of its tenant.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from aiohttp import web

from libs.common.batching import Batching
from services.api_gateway.openai.catalogue import Listed
from tests.attack.serving_world import CHAT, MIB
from tests.integration.gateway_world import World, gateway_world
from tests.integration.openai_replica import Replica, running
from tests.integration.openai_world import served
from tests.integration.test_openai_failures import until

EMBEDDINGS: Final = "/v1/embeddings"
REQUESTS: Final = 16


class Endless(Replica):
    """A server that answers every batch without end, with this type, and each request at once."""

    def __init__(self, content_type: str) -> None:
        super().__init__()
        self.content_type = content_type
        self.sent = 0

    async def _answer(self, request: web.Request, asked: dict[str, Any]) -> web.StreamResponse:
        if not isinstance(asked["input"], list):
            return web.json_response({"data": [{"index": 0, "embedding": [1]}]})
        answer = web.StreamResponse(headers={"content-type": self.content_type})
        await answer.prepare(request)
        for _ in range(1_000):
            await answer.write(b"x" * MIB)
            self.sent += MIB
        return answer


@asynccontextmanager
async def attacked(
    tmp_path: Path, content_type: str, **changed: int
) -> AsyncIterator[tuple[World, Endless]]:
    server = Endless(content_type)
    async with gateway_world(tmp_path, **changed) as world, running(replica=server):
        world.gateway.models = models = Listed(served(server.port))
        models.batches["m"] = Batching(items_max=REQUESTS, wait_ms=2_000)
        yield world, server


async def statuses(world: World) -> list[int]:
    async def one(number: int) -> int:
        body = json.dumps({"model": "m", "input": str(number)})
        async with world.session.post(world.url + EMBEDDINGS, data=body) as answer:
            await answer.read()
            return answer.status

    return await asyncio.gather(*(one(number) for number in range(REQUESTS)))


@pytest.mark.parametrize("content_type", ["application/json", "text/event-stream"])
async def test_an_answer_of_a_batch_is_no_larger_than_any_other_and_its_requests_go_alone(
    tmp_path: Path, content_type: str
) -> None:
    async with attacked(tmp_path, content_type, model_answer_bytes=4 * MIB) as (world, server):
        found = await statuses(world)
        assert set(found) <= {200, 502} and 200 in found
        assert server.sent <= 32 * MIB
        await until(lambda: world.gateway.shares.bytes.held == 0)


async def test_the_answer_of_a_batch_counts_among_the_bytes_of_its_tenant(tmp_path: Path) -> None:
    async with attacked(tmp_path, "application/json", model_bodies_bytes=8 * MIB) as (
        world,
        server,
    ):
        assert await statuses(world) == [429] * REQUESTS
        assert server.sent <= 32 * MIB
        await until(lambda: world.gateway.shares.bytes.held == 0)


class Unfinished(Replica):
    """A server whose streams begin an event, and never end it."""

    async def _answer(self, request: web.Request, asked: dict[str, Any]) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await answer.prepare(request)
        await answer.write(b"data: " + b"x" * MIB)
        await asyncio.Event().wait()
        return answer


async def test_events_that_do_not_end_count_among_the_bytes_of_their_tenant(
    tmp_path: Path,
) -> None:
    server = Unfinished()
    async with (
        gateway_world(tmp_path, model_bodies_bytes=5 * MIB) as world,
        running(replica=server),
    ):
        world.gateway.models = Listed(served(server.port))
        share = world.gateway.shares.bytes

        async def status() -> int:
            body = {"model": "m", "messages": [], "stream": True}
            async with world.session.post(world.url + CHAT, json=body) as answer:
                return answer.status

        asked = [asyncio.create_task(status()) for _ in range(5)]
        found, held = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED, timeout=10.0)
        assert found and {each.result() for each in found} == {429} and held
        assert MIB < share.held < 5 * MIB
        for each in held:
            each.cancel()
        await until(lambda: share.held == 0)
