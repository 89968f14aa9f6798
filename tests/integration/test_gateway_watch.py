"""`GET /v1/watch`: the present state, then each change; a client that continues misses nothing, or
is told so.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import aiohttp
import pytest

from libs.common.folds import job_fold
from services.api_gateway.access.roles import ADMIN, Principal
from services.api_gateway.problems import Problem
from services.api_gateway.views import deltas
from services.api_gateway.views.deltas import Stream
from services.api_gateway.views.interests import Interest, JobFilter
from tests.integration.gateway_world import World, gateway_world


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with gateway_world(tmp_path) as made:
        await made.writers.begin_term()
        await made.writers.register("n1")
        await made.settle()
        yield made


async def test_a_watch_shows_the_present_state_then_changes(world: World) -> None:
    job_id = await world.run_to("queued")
    async with world.session.get(world.url + "/v1/watch") as response:
        assert [kind for kind, _ in [await _event(response) for _ in range(3)]] == [
            "job",
            "node",
            "ready",
        ]
        await world.writers.place(job_id, "n1")
        events = [await _event(response) for _ in range(2)]
        assert [(kind, data["id"]) for kind, data in events] == [("job", job_id), ("node", "n1")]
        assert events[0][1]["state"] == "placed"


async def test_a_watch_that_reconnects_gets_the_changes_since(world: World) -> None:
    await world.run_to("queued")
    seen = world.gateway.cluster.seq
    job_id = await world.run_to("completed")
    async with world.session.get(
        world.url + "/v1/watch", headers={"last-event-id": str(seen)}
    ) as response:
        kind, data = await _event(response)
        assert (kind, data["id"], data["state"]) == ("job", job_id, "completed")


async def test_a_watch_does_not_continue_past_ended_jobs_that_are_no_longer_kept(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (job_fold, deltas):
        monkeypatch.setattr(module, "ENDED_JOBS_KEPT", 2)
    missed = await world.run_to("queued")
    seen = world.gateway.cluster.seq
    for step in (world.writers.place, world.writers.start, world.writers.finish):
        await step(missed, "n1")
    await world.writers.close(missed)
    await world.settle()
    headers = {"last-event-id": str(seen)}
    async with world.session.get(world.url + "/v1/watch", headers=headers) as response:
        assert (await _event(response))[1]["id"] == missed
    for _ in range(2):
        await world.run_to("completed")
    problem = await world.ask("GET", f"/v1/watch?after={seen}", 410)
    assert "leave out after to begin anew" in problem["detail"]
    async with world.session.get(world.url + "/v1/watch", headers=headers) as response:
        assert response.status == 410
    async with world.session.get(world.url + "/v1/watch") as response:
        assert (await _event(response))[0] == "node"


async def test_a_client_that_reads_too_slowly_to_see_every_end_is_told_so(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (job_fold, deltas):
        monkeypatch.setattr(module, "ENDED_JOBS_KEPT", 2)
    interest = Interest(jobs=JobFilter(elements=True))
    principal = Principal("k", "default", "root", ADMIN)
    async with aclosing(Stream(world.gateway, principal, interest).pieces()) as pieces:
        first = await anext(pieces)
        assert first is not None and first.is_ready
        for _ in range(3):
            await world.run_to("completed")
        with pytest.raises(Problem, match="others have ended since commit") as problem:
            await anext(pieces)
        assert problem.value.status == 410


async def _event(response: aiohttp.ClientResponse) -> tuple[str, dict[str, object]]:
    fields: dict[str, str] = {}
    while (
        line := (await asyncio.wait_for(response.content.readline(), 5)).decode().rstrip("\n")
    ) or not fields:
        name, _, value = line.partition(": ")
        fields[name] = value
    return fields["event"], json.loads(fields["data"])
