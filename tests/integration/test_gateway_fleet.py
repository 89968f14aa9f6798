"""GET /v1/fleet over real HTTP: pages of nodes, removed nodes, and what another tenant sees."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.gateway_world import World, gateway_world


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with gateway_world(tmp_path) as made:
        await made.writers.begin_term()
        for number in range(5):
            await made.writers.register(f"n{number}")
        await made.settle()
        yield made


async def test_pages_of_the_fleet_join(world: World) -> None:
    whole = await world.ask("GET", "/v1/fleet")
    assert [node["id"] for node in whole["nodes"]] == ["n0", "n1", "n2", "n3", "n4"]
    assert (whole["next"], whole["seq"]) == (None, world.gateway.cluster.seq)
    seen, after = [], ""
    while after is not None:
        page = await world.ask("GET", f"/v1/fleet?limit=2&after={after}")
        seen += page["nodes"]
        after = page["next"]
    assert seen == whole["nodes"]
    await world.ask("GET", "/v1/fleet?after=n9", 422)


async def test_holders_are_named_to_their_own_tenant_only(world: World) -> None:
    await world.ask("PUT", "/v1/tenants/physics", 201)
    job_id = await world.run_to("running", name="train")
    full = (await world.ask("GET", "/v1/fleet"))["nodes"][1]["gpus"]
    assert full[0] == {
        "uuid": "n1-g0",
        "index": 0,
        "model": "H100",
        "state": "IN_USE",
        "health": "healthy",
        "service": "online",
        "free": 0,
        "mig": False,
        "holders": [
            {"tenant": "default", "share": 100, "job": job_id, "user": "tests", "name": "train"}
        ],
    }
    async with world.as_("viewer", "eve", "physics") as eve:
        seen = (await eve.ask("GET", "/v1/fleet"))["nodes"][1]["gpus"]
    assert seen[0]["holders"] == [{"tenant": None, "share": 100}]
