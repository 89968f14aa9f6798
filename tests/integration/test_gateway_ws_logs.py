"""The topic `logs`: the output of a job as its node sends it, over attempts, and its end."""

import asyncio
from base64 import b64decode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from libs.common import facts as f
from libs.common.model import JobId
from tests.integration.gateway_world import FakeNode, World, gateway_world
from tests.integration.ws_world import Socket, socket


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with gateway_world(tmp_path, followers_per_job=2) as made:
        await made.writers.begin_term()
        await made.writers.register("n1")
        await made.settle()
        yield made


@pytest.fixture
async def node(world: World) -> FakeNode:
    made = FakeNode()
    await made.listen(world.bus, "n1")
    return made


def text(frame: dict[str, Any]) -> bytes:
    return b64decode(frame["data"]["data"])


async def read(client: Socket, size: int) -> bytes:
    """So many bytes of output, which follow each other."""
    found = b""
    while len(found) < size:
        frame = await client.next()
        assert (frame["event"], frame["data"]["offset"]) == ("log", len(found)), frame
        found += text(frame)
    return found


async def test_output_is_followed_to_its_end(world: World, node: FakeNode) -> None:
    job_id = await world.run_to("running")
    node.say(job_id, "stdout", b"one\n")
    async with socket(world) as client:
        await client.subscribe("o", "logs", job=job_id)
        frame = await client.next()
        assert frame["data"] == {
            "job": job_id,
            "rank": 0,
            "stream": "stdout",
            "attempt": 1,
            "offset": 0,
            "next_offset": 4,
            "data": "b25lCg==",
        }
        node.say(job_id, "stdout", b"two\n", end=True)
        assert text(await client.next()) == b"two\n"
        await world.writers.finish(job_id, "n1")
        await world.writers.close(job_id)
        last = await client.next()
        assert (last["event"], last["data"]["next_offset"]) == ("end", 8)
        assert last["data"]["state"] == "completed" and not last["data"]["gone"]
        await client.subscribe("o", "logs", job=job_id, offset=4)
        assert text(await client.next()) == b"two\n"
        await client.until("end")
        await client.subscribe("o", "logs", job=job_id, tail_bytes=3)
        assert text(await client.next()) == b"wo\n"


async def test_long_output_comes_in_frames_of_bounded_size(world: World, node: FakeNode) -> None:
    job_id = await world.run_to("running")
    written = bytes(range(256)) * 2_000
    node.say(job_id, "stdout", written)
    async with socket(world) as client:
        await client.subscribe("o", "logs", job=job_id)
        assert await read(client, len(written)) == written
        assert max(len(text(frame)) for frame in client.frames) <= 48 << 10


async def test_output_goes_on_with_the_next_attempt(world: World, node: FakeNode) -> None:
    job_id = await world.run_to("running", retries=1)
    node.say(job_id, "stdout", b"first", end=True)
    async with socket(world) as client:
        await client.subscribe("o", "logs", job=job_id)
        assert text(await client.next()) == b"first"
        await world.writers.finish(job_id, "n1", exit_code=1)
        await world.writers.schedule(
            f.JobRequeued(job_id=JobId(job_id), attempt=1, reason="failed", counted=True)
        )
        await world.writers.place(job_id, "n1", attempt=2)
        await world.writers.start(job_id, "n1", attempt=2)
        node.say(job_id, "stdout", b"second", attempt=2, end=True)
        frame = await client.next()
        assert (text(frame), frame["data"]["attempt"], frame["data"]["offset"]) == (
            b"second",
            2,
            0,
        )


async def test_the_followers_of_a_job_are_bounded(world: World, node: FakeNode) -> None:
    job_id = await world.run_to("running")
    node.say(job_id, "stdout", b"x")
    async with socket(world) as client:
        for name in ("a", "b"):
            await client.subscribe(name, "logs", job=job_id)
            await client.next()
        await client.subscribe("c", "logs", job=job_id)
        frame = await client.next()
        assert (frame["id"], frame["data"]["status"]) == ("c", 429)
        await client.tell(op="unsubscribe", id="a")
        await client.until("end")
        await client.subscribe("c", "logs", job=job_id)
        assert (await client.next())["event"] == "log"
    async with asyncio.timeout(5):
        while world.gateway.places.by_job:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("chosen", "status", "field"),
    [
        ({"job": "nothing"}, 404, None),
        ({"rank": 3}, 422, "filter.rank"),
        ({"attempt": 9}, 422, "filter.attempt"),
    ],
)
async def test_output_that_cannot_be_is_refused(
    world: World, chosen: dict[str, Any], status: int, field: str | None
) -> None:
    job_id = await world.run_to("running")
    async with socket(world) as client:
        await client.subscribe("o", "logs", **{"job": job_id, **chosen})
        frame = await client.next()
        assert frame["event"] == "error"
        assert (frame["data"]["status"], frame["data"].get("field")) == (status, field)
