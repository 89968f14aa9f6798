"""One tenant asks nodes and the archive without end. Its questions wait behind each other, and
those of another tenant do not wait behind them.
"""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from libs.common import subjects
from services.api_gateway.access.slots import ARCHIVE, MOST, NODE
from tests.integration.gateway_world import World, gateway_world

MANY = 30


async def statuses(world: World, path: str, count: int) -> Counter[int]:
    async def one(number: int) -> int:
        async with world.session.get(world.url + path.format(number)) as response:
            return response.status

    return Counter(await asyncio.gather(*(one(number) for number in range(count))))


@pytest.mark.parametrize(
    ("path", "subject", "most"),
    [
        ("/v1/nodes/n1/readings", subjects.ask_node("n1", "readings"), MOST[NODE]),
        ("/v1/nodes/n1/topology", subjects.ask_node("n1", "topology"), MOST[NODE]),
        ("/v1/jobs/unknown{}", subjects.ask_audit("job"), MOST[ARCHIVE]),
    ],
)
async def test_questions_of_one_tenant_wait_behind_each_other(
    tmp_path: Path, path: str, subject: str, most: int
) -> None:
    may_answer = asyncio.Event()
    asked = 0

    async def held(subject: str, data: bytes) -> bytes:
        nonlocal asked
        asked += 1
        await may_answer.wait()
        return b"\x90"

    async with gateway_world(tmp_path, ask_ms=60_000) as world:
        await world.writers.begin_term()
        await world.writers.register("n1")
        await world.settle()
        await world.bus.subscribe(subject, held, concurrent=True)
        for tenant in ("greedy", "quiet"):
            await world.ask("PUT", f"/v1/tenants/{tenant}", 201, json={})
        async with (
            world.as_("viewer", "mallory", "greedy") as mallory,
            world.as_("viewer", "ada", "quiet") as ada,
        ):
            flood = asyncio.create_task(statuses(mallory, path, MANY))
            while asked < most:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            assert asked == most
            other = asyncio.create_task(statuses(ada, path, 1))
            while asked == most:
                await asyncio.sleep(0.01)
            may_answer.set()
            assert (await flood).total() == MANY and (await other).total() == 1
