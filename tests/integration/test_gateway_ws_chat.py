"""Requests to models over a WebSocket: the stream as frames, cancellation, errors, and a reader
that does not read.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.gateway_world import World
from tests.integration.openai_replica import Replica
from tests.integration.openai_world import MESSAGES, model_world
from tests.integration.ws_world import key_of, socket


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[tuple[World, Replica]]:
    async with model_world(tmp_path) as made:
        yield made


def asked(**fields: Any) -> dict[str, Any]:
    return {"messages": MESSAGES, **fields}


async def test_the_stream_of_a_model_comes_as_frames(both: tuple[World, Replica]) -> None:
    world, replica = both
    async with socket(world) as client:
        await client.tell(op="request", id="r", model="m", body=asked(x_chunks=3))
        frames = await client.until("end")
        assert {frame["id"] for frame in frames} == {"r"}
        chunks = [frame["data"] for frame in frames if frame["event"] == "chunk"]
        contents = [
            choice["delta"].get("content") for chunk in chunks for choice in chunk["choices"]
        ]
        assert len([each for each in contents if each]) >= 3
        assert frames[-1]["data"] == {"status": 200}
    assert b'"stream":true' in replica.bodies[0].replace(b" ", b"")


async def test_a_request_that_is_cancelled_ends_at_its_replica(
    both: tuple[World, Replica],
) -> None:
    world, replica = both
    async with socket(world) as client:
        body = asked(x_chunks=100_000, x_gap_s=0.01)
        await client.tell(op="request", id="r", model="m", body=body)
        await client.until("chunk")
        await client.tell(op="cancel", id="r")
        last = (await client.until("end"))[-1]
        assert last["data"] == {"status": 200, "cancelled": True}
        async with asyncio.timeout(10):
            while not replica.cancelled or world.gateway.queues.open.counts:
                await asyncio.sleep(0.01)
        await client.tell(op="cancel", id="r")
        assert (await client.next())["event"] == "end"


async def test_a_client_that_hangs_up_ends_its_requests(both: tuple[World, Replica]) -> None:
    world, replica = both
    async with socket(world) as client:
        body = asked(x_chunks=100_000, x_gap_s=0.01)
        await client.tell(op="request", id="r", model="m", body=body)
        await client.until("chunk")
    async with asyncio.timeout(10):
        while not replica.cancelled or world.gateway.queues.open.counts:
            await asyncio.sleep(0.01)
    loads = world.gateway.queues.of("m").rules.router.loads
    now_ns = world.gateway.clock.boot_ns()
    assert not any(loads.of(each).is_avoided(now_ns) for each in loads.known())


async def test_requests_and_subscriptions_share_a_connection(both: tuple[World, Replica]) -> None:
    world, _ = both
    async with socket(world) as client:
        await client.subscribe("j", "jobs", snapshot=False)
        await client.until("ready")
        for name in ("r1", "r2"):
            body = asked(x_chunks=20, x_gap_s=0.01)
            await client.tell(op="request", id=name, model="m", body=body)
        job = await world.submit()
        ends: set[str] = set()
        seen: set[str] = set()
        while len(ends) < 2 or not seen:
            frame = await client.next()
            if frame["event"] == "end":
                ends.add(frame["id"])
            if frame["event"] == "job":
                seen.add(frame["data"]["id"])
        assert (ends, seen) == ({"r1", "r2"}, {job["id"]})


@pytest.mark.parametrize(
    ("model", "body", "status", "text"),
    [
        ("nothing", asked(), 404, "does not exist"),
        ("theirs", asked(), 404, "does not exist"),
        ("m", asked(x_status=400, x_body={"error": {"message": "bad"}}), 400, "bad"),
    ],
)
async def test_an_error_of_the_model_is_a_frame(
    both: tuple[World, Replica], model: str, body: dict[str, Any], status: int, text: str
) -> None:
    world, _ = both
    key = await key_of(world, "member", "ada")
    async with socket(world, key=key) as client:
        await client.tell(op="request", id="r", model=model, body=body)
        frame = (await client.until("error"))[-1]
        assert (frame["id"], frame["data"]["status"]) == ("r", status), frame
        assert text in frame["data"]["detail"]
        await client.tell(op="request", id="r", model="m", body=asked(x_chunks=1))
        await client.until("end")


async def test_a_viewer_may_watch_but_not_ask_models(both: tuple[World, Replica]) -> None:
    world, replica = both
    key = await key_of(world, "viewer", "eve")
    async with socket(world, key=key) as client:
        await client.tell(op="request", id="r", model="m", body=asked())
        frame = (await client.until("error"))[-1]
        assert frame["data"]["status"] == 403
        assert "may not use POST /v1/chat/completions" in frame["data"]["detail"]
    assert not replica.bodies


async def test_requests_of_a_connection_are_bounded(both: tuple[World, Replica]) -> None:
    world, _ = both
    async with socket(world) as client:
        for number in range(9):
            body = asked(x_chunks=1, x_delay_s=1.0)
            await client.tell(op="request", id=f"r{number}", model="m", body=body)
        frame = await client.next()
        assert (frame["event"], frame["data"]["status"]) == ("error", 429)
