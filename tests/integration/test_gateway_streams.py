"""A job's bytes through the gateway: output, attach and input, over real HTTP."""

import asyncio
import json
from base64 import b64decode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from libs.common import facts as f
from libs.common.model import JobId
from libs.common.transport.kv import output_key
from tests.integration.gateway_world import FakeNode, World, gateway_world


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with gateway_world(tmp_path) as made:
        await made.writers.begin_term()
        await made.writers.register("n1")
        await made.writers.register("n2")
        await made.settle()
        yield made


@pytest.fixture
async def node(world: World) -> FakeNode:
    made = FakeNode()
    await made.listen(world.bus, "n1")
    return made


async def output(world: World, job_id: str, query: str = "") -> tuple[bytes, str, int]:
    async with world.session.get(f"{world.url}/v1/jobs/{job_id}/output?{query}") as response:
        assert response.status == 200, await response.text()
        return (
            await response.read(),
            response.headers["x-muster-output"],
            int(response.headers["x-muster-offset"]),
        )


async def frames_of(world: World, job_id: str, query: str = "") -> list[dict[str, Any]]:
    async with world.session.get(f"{world.url}/v1/jobs/{job_id}/attach?{query}") as response:
        assert response.status == 200, await response.text()
        return [json.loads(line) async for line in response.content]


def said(frames: list[dict[str, Any]], stream: str) -> bytes:
    return b"".join(b64decode(frame["data"]) for frame in frames if frame.get("stream") == stream)


async def test_output_is_what_there_is_now(world: World, node: FakeNode) -> None:
    job_id = await world.run_to("running")
    node.say(job_id, "stdout", b"one\ntwo\n")
    assert await output(world, job_id) == (b"one\ntwo\n", "node", 0)
    assert await output(world, job_id, "offset=4") == (b"two\n", "node", 4)
    assert await output(world, job_id, "stream=stderr") == (b"", "node", 0)


async def test_output_larger_than_one_message_arrives_whole(world: World, node: FakeNode) -> None:
    job_id = await world.run_to("running")
    data = bytes(range(256)) * 4096
    node.say(job_id, "stdout", data)
    assert (await output(world, job_id))[0] == data
    assert await output(world, job_id, "tail_bytes=1000") == (
        data[-1000:],
        "node",
        len(data) - 1000,
    )


async def test_followed_output_comes_as_it_is_written_and_ends_with_the_job(
    world: World, node: FakeNode
) -> None:
    job_id = await world.run_to("queued")
    async with world.session.get(f"{world.url}/v1/jobs/{job_id}/output?follow=1") as response:
        await world.writers.place(job_id, "n1")
        await world.writers.start(job_id, "n1")
        node.say(job_id, "stdout", b"first")
        assert await response.content.readexactly(5) == b"first"
        node.say(job_id, "stdout", b"last", end=True)
        assert await response.content.read() == b"last"


async def test_the_stored_tail_serves_when_the_node_is_gone(world: World) -> None:
    job_id = await world.run_to("completed")
    await world.writers.finish(job_id, "n1")
    await world.outputs.put(
        output_key(node_id="n1", job_id=job_id, attempt=1, rank=0, stream="stdout"), b"the end"
    )
    assert await output(world, job_id) == (b"the end", "tail", 0)


async def test_the_stored_tail_has_the_offsets_of_the_whole_output(world: World) -> None:
    job_id = await world.run_to("running")
    await world.writers.finish(job_id, "n1", written=107)
    await world.writers.close(job_id)
    await world.settle()
    await world.outputs.put(
        output_key(node_id="n1", job_id=job_id, attempt=1, rank=0, stream="stdout"), b"the end"
    )
    assert await output(world, job_id) == (b"the end", "tail", 100)
    assert await output(world, job_id, "offset=104") == (b"end", "tail", 104)
    assert await output(world, job_id, "tail_bytes=3") == (b"end", "tail", 104)


async def test_output_of_a_live_job_on_a_silent_node_is_a_503_that_names_the_node(
    world: World,
) -> None:
    job_id = await world.run_to("running")
    problem = await world.ask("GET", f"/v1/jobs/{job_id}/output", 503)
    assert "ask.node.n1.output" in problem["detail"]


async def test_a_job_without_a_node_has_no_output_yet(world: World) -> None:
    job_id = await world.run_to("queued")
    assert await output(world, job_id) == (b"", "node", 0)


async def test_attach_gives_states_both_streams_and_the_exit(world: World, node: FakeNode) -> None:
    job_id = await world.run_to("queued")
    attached = asyncio.create_task(frames_of(world, job_id))
    await asyncio.sleep(0.05)
    await world.writers.place(job_id, "n1")
    await asyncio.sleep(0.05)
    await world.writers.start(job_id, "n1")
    node.say(job_id, "stdout", b"out")
    node.say(job_id, "stderr", b"err", end=True)
    await asyncio.sleep(0.05)
    node.say(job_id, "stdout", b"put", end=True)
    await world.writers.finish(job_id, "n1", exit_code=3)
    await world.writers.close(job_id, "failed", 3)
    frames = await attached
    states = [frame["state"] for frame in frames if "state" in frame and "exit_code" not in frame]
    assert states[0] == "queued" and states.index("placed") < states.index("running")
    assert (said(frames, "stdout"), said(frames, "stderr")) == (b"output", b"err")
    assert frames[-1] == {"exit_code": 3, "state": "failed", "reason": "", "attempt": 1}


async def test_attach_goes_on_from_the_offsets_that_it_is_given(
    world: World, node: FakeNode
) -> None:
    job_id = await world.run_to("completed")
    node.say(job_id, "stdout", b"0123456789", end=True)
    node.say(job_id, "stderr", b"abc", end=True)
    frames = await frames_of(world, job_id, "stdout=6&stderr=3")
    assert (said(frames, "stdout"), said(frames, "stderr")) == (b"6789", b"")
    assert [frame["offset"] for frame in frames if "stream" in frame] == [6]


async def test_attach_begins_a_new_attempt_at_its_first_byte(world: World, node: FakeNode) -> None:
    other = FakeNode()
    await other.listen(world.bus, "n2")
    job_id = await world.run_to("running", retries=1)
    node.say(job_id, "stdout", b"lost", end=True)
    node.say(job_id, "stderr", b"", end=True)
    attached = asyncio.create_task(frames_of(world, job_id))
    await asyncio.sleep(0.05)
    await world.writers.finish(job_id, "n1", exit_code=1)
    await world.writers.schedule(
        f.JobRequeued(job_id=JobId(job_id), attempt=1, reason="failed", counted=True)
    )
    await world.writers.place(job_id, "n2", attempt=2)
    other.say(job_id, "stdout", b"again", attempt=2, end=True)
    other.say(job_id, "stderr", b"", attempt=2, end=True)
    await world.writers.start(job_id, "n2", attempt=2)
    await world.writers.finish(job_id, "n2", attempt=2)
    await world.writers.close(job_id, attempt=2)
    frames = await attached
    assert said(frames, "stdout") == b"lostagain"
    assert {frame["attempt"] for frame in frames if "state" in frame} >= {1, 2}
    assert frames[-1]["attempt"] == 2


async def test_attach_to_a_job_that_never_ran_ends_with_it(world: World) -> None:
    job_id = await world.run_to("queued")
    attached = asyncio.create_task(frames_of(world, job_id))
    await asyncio.sleep(0.05)
    await world.writers.schedule(
        f.JobClosed(job_id=JobId(job_id), attempt=1, outcome="cancelled", reason="user")
    )
    assert (await attached)[-1] == {
        "exit_code": None,
        "state": "cancelled",
        "reason": "user",
        "attempt": 1,
    }


async def test_a_client_that_leaves_leaves_nothing_behind(world: World, node: FakeNode) -> None:
    job_id = await world.run_to("running")
    node.say(job_id, "stdout", b"x")
    before = len(asyncio.all_tasks())
    async with world.session.get(f"{world.url}/v1/jobs/{job_id}/attach") as response:
        await response.content.readline()
        response.close()
    for _ in range(100):
        if len(asyncio.all_tasks()) <= before + 2 and not world.gateway.waiting.by_job:
            break
        await asyncio.sleep(0.02)
    assert not world.gateway.waiting.by_job


async def test_input_reaches_the_first_member_by_offset(world: World, node: FakeNode) -> None:
    job_id = await world.run_to("running", stdin=True)
    assert (await world.ask("PUT", f"/v1/jobs/{job_id}/stdin?offset=0", data=b"hello "))[
        "next_offset"
    ] == 6
    assert (await world.ask("PUT", f"/v1/jobs/{job_id}/stdin?offset=0", data=b"hello "))[
        "next_offset"
    ] == 6
    ended = await world.ask("PUT", f"/v1/jobs/{job_id}/stdin?offset=6&eof=1&attempt=1", data=b"you")
    assert ended == {"next_offset": 9, "attempt": 1, "closed": True}
    assert (node.input, node.eof) == (b"hello you", True)


async def requeued(world: World, node: FakeNode, written: int = 4) -> str:
    """A job whose first attempt said `lost` on n1, and whose second runs on n2."""
    job_id = await world.run_to("running", retries=1, stdin=True)
    node.say(job_id, "stdout", b"lost", end=True)
    node.say(job_id, "stderr", b"", end=True)
    await world.writers.finish(job_id, "n1", exit_code=1, written=written)
    await world.writers.schedule(
        f.JobRequeued(job_id=JobId(job_id), attempt=1, reason="failed", counted=True)
    )
    await world.writers.place(job_id, "n2", attempt=2)
    await world.writers.start(job_id, "n2", attempt=2)
    await world.settle()
    return job_id


async def test_input_for_an_earlier_attempt_is_never_given_to_the_next(
    world: World, node: FakeNode
) -> None:
    job_id = await requeued(world, node)
    problem = await world.ask(
        "PUT", f"/v1/jobs/{job_id}/stdin?offset=6&attempt=1", 409, data=b"you"
    )
    assert (problem["attempt"], problem["next_offset"], node.input) == (2, 0, b"")


async def test_the_output_of_an_earlier_attempt_comes_from_its_node(
    world: World, node: FakeNode
) -> None:
    job_id = await requeued(world, node)
    assert await output(world, job_id, "attempt=1") == (b"lost", "node", 0)
    assert await output(world, job_id, "attempt=1&follow=1&offset=1") == (b"ost", "node", 1)
    assert await output(world, job_id, "attempt=1&tail_bytes=2") == (b"st", "node", 2)
    await world.ask("GET", f"/v1/jobs/{job_id}/output?attempt=3", 422)


async def test_the_output_of_an_earlier_attempt_comes_from_the_store_once_its_node_is_silent(
    world: World,
) -> None:
    job_id = await requeued(world, FakeNode(), written=104)
    await world.outputs.put(
        output_key(node_id="n1", job_id=job_id, attempt=1, rank=0, stream="stdout"), b"lost"
    )
    assert await output(world, job_id, "attempt=1") == (b"lost", "tail", 100)


async def test_output_without_any_copy_is_reported_as_gone(world: World) -> None:
    job_id = await requeued(world, FakeNode())
    problem = await world.ask("GET", f"/v1/jobs/{job_id}/output?attempt=1", 410)
    assert "attempt 1" in problem["detail"] and "node n1" in problem["detail"]
    assert await output(world, job_id, "attempt=1&stream=stderr") == (b"", "node", 0)


async def test_attach_first_says_the_rest_of_the_attempt_that_the_client_knew(
    world: World, node: FakeNode
) -> None:
    other = FakeNode()
    await other.listen(world.bus, "n2")
    job_id = await requeued(world, node)
    other.say(job_id, "stdout", b"again", attempt=2, end=True)
    other.say(job_id, "stderr", b"", attempt=2, end=True)
    await world.writers.finish(job_id, "n2", attempt=2)
    await world.writers.close(job_id, attempt=2)
    frames = await frames_of(world, job_id, "attempt=1&stdout=2")
    said_by = [
        (frame["attempt"], frame["offset"], b64decode(frame["data"]))
        for frame in frames
        if "stream" in frame
    ]
    assert said_by == [(1, 2, b"st"), (2, 0, b"again")]


async def test_input_is_refused_where_it_cannot_go(world: World, node: FakeNode) -> None:
    closed = await world.run_to("running")
    await world.ask("PUT", f"/v1/jobs/{closed}/stdin", 422, data=b"x")
    early = await world.run_to("queued", stdin=True)
    await world.ask("PUT", f"/v1/jobs/{early}/stdin", 425, data=b"x")
    late = await world.run_to("queued", stdin=True)
    await world.writers.schedule(f.JobClosed(job_id=JobId(late), attempt=1, outcome="cancelled"))
    await world.settle()
    await world.ask("PUT", f"/v1/jobs/{late}/stdin", 410, data=b"x")
    await world.ask("PUT", f"/v1/jobs/{early}/stdin", 413, data=b"x" * (300 << 10))


async def test_a_pruned_output_is_its_stored_end_and_says_so(world: World, node: FakeNode) -> None:
    job_id = await world.run_to("running")
    await world.writers.finish(job_id, "n1", written=107)
    await world.writers.close(job_id)
    await world.settle()
    problem = await world.ask("GET", f"/v1/jobs/{job_id}/output", 410)
    assert (
        "is gone: it was pruned on node n1, and its end is not stored off the node"
        in problem["detail"]
    )
    await world.outputs.put(
        output_key(node_id="n1", job_id=job_id, attempt=1, rank=0, stream="stdout"), b"the end"
    )
    assert await output(world, job_id) == (b"the end", "tail, pruned on n1", 100)
