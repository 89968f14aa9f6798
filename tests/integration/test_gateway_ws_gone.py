"""Clients of GET /v1/ws that continue when the state has lost jobs that ended since."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from libs.common.folds import job_fold
from services.api_gateway.views import deltas
from tests.integration.gateway_world import World, gateway_world
from tests.integration.ws_world import socket


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with gateway_world(tmp_path) as made:
        await made.writers.begin_term()
        await made.writers.register("n1")
        await made.settle()
        yield made


async def test_a_client_cannot_continue_past_ended_jobs_that_are_no_longer_kept(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (job_fold, deltas):
        monkeypatch.setattr(module, "ENDED_JOBS_KEPT", 2)
    missed = await world.run_to("queued")
    after = world.gateway.cluster.seq
    await world.writers.place(missed, "n1")
    await world.writers.start(missed, "n1")
    await world.writers.finish(missed, "n1")
    await world.writers.close(missed)
    await world.settle()
    async with socket(world) as client:
        await client.subscribe("a", "jobs", after=after)
        rows = await client.until("ready")
        assert [frame["data"]["id"] for frame in rows[:-1]] == [missed]
        first, second = await world.run_to("completed"), await world.run_to("completed")
        later = world.gateway.cluster.seq
        await client.subscribe("b", "jobs", after=after)
        [*_, refused] = await client.until("error")
        assert (refused["id"], refused["data"]["status"]) == ("b", 410)
        assert refused["data"]["field"] == "after" and "to begin anew" in refused["data"]["detail"]
        await client.subscribe("c", "jobs", after=after, ids=[missed, second])
        [*_, refused] = await client.until("error")
        assert (refused["id"], refused["data"]["status"]) == ("c", 410)
        await client.subscribe("d", "jobs", after=after, ids=[first, second])
        await client.until("ready", "d")
        await client.subscribe("e", "nodes", after=after)
        await client.until("ready", "e")
        await client.subscribe("b", "jobs")
        await client.until("ready", "b")
        await world.run_to("completed")
        await client.subscribe("f", "jobs", after=later)
        await client.until("ready", "f")
