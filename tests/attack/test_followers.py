"""One tenant opens many idle followers.

Its own are bounded, and another tenant's output, exec and port-forward on that node still answer.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import msgspec
import pytest

from libs.common import subjects
from libs.common.messages import OutputAsk, OutputChunk
from libs.common.model import AttemptRef, JobId
from libs.common.process.clock import SystemClock
from libs.common.transport.bus_nats import NatsBus
from libs.common.transport.connection_nats import connect
from services.api_gateway.channels.followers import Followers
from services.api_gateway.problems import Problem
from services.node_agent.channels.channels import CHANNELS_MAX
from services.node_agent.directories.protocol import JobSupervisors, Piece
from services.node_agent.jobs.answers import ASKS_AT_ONCE, WAITING_MAX, WAITING_PER_JOB, Answers
from tests.integration.gateway_world import FakeNode, World, gateway_world
from tests.natsserver import NatsServer

ANSWER_S = 5.0


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with gateway_world(tmp_path, followers_per_job=20, followers_per_tenant=30) as made:
        await made.writers.begin_term()
        await made.writers.register("n1", 8)
        for tenant in ("greedy", "quiet"):
            await made.ask("PUT", f"/v1/tenants/{tenant}", 201)
        await made.settle()
        yield made


async def opened(
    stack: AsyncExitStack, world: World, path: str, count: int, **headers: str
) -> list[aiohttp.ClientResponse]:
    """Open this many answers until the stack is left. None of them is read."""
    asks = [world.session.get(world.url + path, headers=headers) for _ in range(count)]
    return [await stack.enter_async_context(ask) for ask in asks]


async def test_followers_of_a_job_and_of_a_tenant_are_bounded_and_another_tenant_is_served(
    world: World,
) -> None:
    node = FakeNode()
    await node.listen(world.bus, "n1")
    async with AsyncExitStack() as stack:
        greedy = await stack.enter_async_context(world.as_("member", "mallory", "greedy"))
        quiet = await stack.enter_async_context(world.as_("member", "ada", "quiet"))
        greedy.session._connector._limit = quiet.session._connector._limit = 0  # type: ignore[union-attr]
        greedy.writers = quiet.writers = world.writers
        theirs = await greedy.run_to("running")
        node.say(theirs, "stdout", b"idle")
        found = await opened(stack, greedy, f"/v1/jobs/{theirs}/output?follow=1", 25)
        assert [each.status for each in found] == [200] * 20 + [429] * 5
        assert (
            found[-1].headers["retry-after"] == "10"
            and "20 followers" in (await found[-1].json())["detail"]
        )
        more = await opened(stack, greedy, "/v1/events?follow=1", 5)
        more += await opened(stack, greedy, "/v1/events", 5, accept="text/event-stream")
        more += await opened(stack, greedy, "/v1/watch", 1)
        assert [each.status for each in more] == [200] * 10 + [429]
        own = await quiet.run_to("queued")
        (watching, events) = [
            *await opened(stack, quiet, "/v1/watch", 1),
            *await opened(stack, quiet, f"/v1/events?follow=1&job={own}", 1),
        ]
        assert (watching.status, events.status) == (200, 200)


async def test_idle_followers_of_one_output_are_one_ask_of_the_node(world: World) -> None:
    node, asked = FakeNode(), list[OutputAsk]()

    async def note(subject: str, data: bytes) -> bytes:
        ask = msgspec.msgpack.decode(data, type=OutputAsk)
        if ask.wait_ms and ask.offset:
            asked.append(ask)
        return await node._output(subject, data)

    await world.bus.subscribe(subjects.ask_node("n1", "output"), note, concurrent=True)
    job_id = await world.run_to("running")
    node.say(job_id, "stdout", b"one\n")
    async with AsyncExitStack() as stack:
        found = await opened(stack, world, f"/v1/jobs/{job_id}/output?follow=1", 15)
        for each in found:
            assert await each.content.readline() == b"one\n"
        await asyncio.sleep(0)
        assert len(asked) == 1
        node.say(job_id, "stdout", b"two\n")
        for each in found:
            assert await each.content.readline() == b"two\n"
        assert [ask.offset for ask in asked[:2]] == [4, 8] and len(asked) == 2


async def test_a_follower_that_leaves_frees_its_place(world: World) -> None:
    node = FakeNode()
    await node.listen(world.bus, "n1")
    job_id = await world.run_to("running")
    for _ in range(3):
        async with AsyncExitStack() as stack:
            assert [
                each.status for each in await opened(stack, world, f"/v1/jobs/{job_id}/attach", 20)
            ] == [200] * 20
        while world.gateway.places.by_job:
            await asyncio.sleep(0.01)
    async with world.session.get(
        f"{world.url}/v1/jobs/{job_id}/output?follow=1&attempt=7"
    ) as refused:
        assert refused.status == 422
    assert not world.gateway.places.by_tenant


def test_a_place_is_freed_only_once() -> None:
    followers = Followers(per_tenant=2, per_job=1)
    first = followers.take("t", "j")
    with pytest.raises(Problem, match="job j has 1 followers"):
        followers.take("u", "j")
    second = followers.take("t")
    with pytest.raises(Problem, match="tenant t has 2 followers"):
        followers.take("t", "k")
    first.leave()
    first.leave()
    assert followers.by_tenant == {"t": 1} and not followers.by_job["j"]
    second.leave()
    assert not followers.by_tenant


class Idle:
    """Supervisors of jobs that run and write nothing."""

    async def read_output(self, ref: AttemptRef, stream: str, offset: int, max_bytes: int) -> Piece:
        return Piece(offset, b"here" if offset == 0 else b"", False)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    started = NatsServer(tmp_path)
    started.start()
    yield started
    started.kill()


async def test_a_thousand_idle_asks_of_one_job_hold_up_no_other_on_its_node(
    server: NatsServer,
) -> None:
    """As a gateway would ask that does not share or bound: the node itself keeps places."""
    client, gateway = await connect([server.url], "node"), await connect([server.url], "gateway")
    supervisors: JobSupervisors = Idle()  # type: ignore[assignment]
    await Answers(
        node_id="n1",
        bus=NatsBus(client),
        clock=SystemClock(),
        jobs=supervisors,
        expected=lambda _: False,
    ).listen()
    bus, subject = NatsBus(gateway), subjects.ask_node("n1", "output")

    async def ask(job: str, offset: int, wait_ms: int) -> OutputChunk:
        wish = OutputAsk(
            job_id=JobId(job),
            attempt=1,
            stream="stdout",
            offset=offset,
            max_bytes=10,
            wait_ms=wait_ms,
        )
        return msgspec.msgpack.decode(
            await bus.request(subject, msgspec.msgpack.encode(wish), ANSWER_S), type=OutputChunk
        )

    idle = [asyncio.create_task(ask("jgreedy", 1 + n, 30_000)) for n in range(1_100)]
    await asyncio.sleep(0.5)
    try:
        chunk = await ask("jquiet", 0, 0)
        assert chunk.data == b"here"
        done, waiting = await asyncio.wait(idle, timeout=2.0)
        assert len(waiting) <= WAITING_PER_JOB and all(not task.result().data for task in done)
    finally:
        for task in idle:
            task.cancel()
        await asyncio.gather(*idle, return_exceptions=True)
        await client.close()
        await gateway.close()


def test_followers_and_channels_together_leave_places_on_a_node() -> None:
    assert WAITING_MAX + 2 * CHANNELS_MAX < ASKS_AT_ONCE
