"""Channels at their node's end: an agent with real processes, called over the bus."""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from libs.common import facts as f
from libs.common.messages import OutputAsk, OutputChunk, StdinPut, StdinTaken
from libs.common.messages.channel_messages import (
    CHUNK_BYTES,
    ChannelAnswer,
    ChannelAsk,
    ChannelClose,
    ChannelOpen,
    ChannelSignal,
    Exec,
    Forward,
)
from libs.common.model import JobId
from libs.common.subjects import ask_node
from libs.embedded.servers import free_ports
from services.node_agent.channels import channel, channels
from tests.integration.agent_world import NODE, WAIT_S, World, world_at
from tests.integration.supervision_world import gone

JOB = JobId("j")
LISTEN = (
    "import socket, sys, time; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); "
    "print('up', end='', flush=True); time.sleep(60)"
)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with world_at(tmp_path) as made:
        await made.start("j", "exec sleep 60")
        await made.said(f.JobStarted, "j")
        yield made


async def told(world: World, ask: ChannelAsk) -> str:
    """Return the error of an answer."""
    answer = await world.bus.request(ask_node(NODE, "channel"), msgspec.msgpack.encode(ask), WAIT_S)
    return msgspec.msgpack.decode(answer, type=ChannelAnswer).error


async def opened(world: World, wish: Exec | Forward, name: str = "c") -> str:
    return await told(world, ChannelOpen(name, JOB, 1, wish))


async def shell(world: World, script: str, name: str = "c", stdin: bool = False) -> None:
    assert await opened(world, Exec(("/bin/sh", "-c", script), stdin=stdin), name) == ""


async def read(
    world: World, offset: int = 0, name: str = "c", wait_ms: int = 10_000, stream: str = "stdout"
) -> OutputChunk:
    ask = OutputAsk(
        job_id=JOB,
        attempt=1,
        stream=stream,
        offset=offset,
        max_bytes=CHUNK_BYTES,
        wait_ms=wait_ms,
        channel=name,
    )
    answer = await world.bus.request(ask_node(NODE, "output"), msgspec.msgpack.encode(ask), WAIT_S)
    return msgspec.msgpack.decode(answer, type=OutputChunk)


async def rest(
    world: World, offset: int = 0, name: str = "c", stream: str = "stdout"
) -> tuple[bytes, int | None]:
    """Read the output from `offset` to its end, and the exit code."""
    data = b""
    while not (chunk := await read(world, offset + len(data), name, stream=stream)).end:
        data += chunk.data
    assert chunk.error == ""
    return data, chunk.exit_code


async def put(
    world: World, offset: int, data: bytes, eof: bool = False, name: str = "c"
) -> StdinTaken:
    message = msgspec.msgpack.encode(
        StdinPut(job_id=JOB, attempt=1, offset=offset, data=data, eof=eof, channel=name)
    )
    return msgspec.msgpack.decode(
        await world.bus.request(ask_node(NODE, "stdin"), message, WAIT_S), type=StdinTaken
    )


async def test_a_repeated_question_gets_the_same_answer_and_changes_nothing(world: World) -> None:
    await shell(world, "cat; exit 4", stdin=True)
    await shell(world, "never runs")
    assert [
        await put(world, 0, b"abc"),
        await put(world, 0, b"abc"),
        await put(world, 1, b"bcd"),
    ] == [
        StdinTaken(3),
        StdinTaken(3),
        StdinTaken(4),
    ]
    first = await read(world)
    assert first.data in (b"abc", b"abcd") and await read(world) == first
    if first.data == b"abc":
        assert (await read(world, 3)).data == b"d"
    assert await put(world, 4, b"", eof=True) == StdinTaken(4, closed=True)
    assert await rest(world, 4) == (b"", 4)
    assert await rest(world, stream="stderr") == (b"", 4)


async def test_a_gap_is_refused_both_ways(world: World) -> None:
    await shell(world, "cat", stdin=True)
    assert "a gap" in (await put(world, 7, b"x")).error
    assert "is not available" in (await read(world, 7, wait_ms=0)).error


async def test_unread_input_is_accepted_up_to_the_kernel_s_buffer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "WRITE_WAIT_S", 0.2)
    await shell(world, "sleep 60", stdin=True)
    data, offset = bytes(CHUNK_BYTES), 0
    for _ in range(8):
        offset = (await put(world, offset, data)).next_offset
    assert 0 < offset <= 2 * CHUNK_BYTES
    assert await told(world, ChannelSignal("c", 15)) == ""
    assert await rest(world) == (b"", 143)


async def test_background_process_that_keeps_the_output_open_does_not_delay_the_end(
    world: World,
) -> None:
    await shell(world, "sleep 60 & echo said; exit 3")
    assert await rest(world) == (b"said\n", 3)


async def test_a_channel_whose_gateway_is_silent_is_ended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "SILENCE_S", 2.0)
    await shell(world, "echo $$; exec sleep 60")
    await shell(world, "exec sleep 60", "kept")
    pid = int((await read(world)).data)
    for _ in range(8):
        await asyncio.sleep(0.3)
        assert await put(world, 0, b"", name="kept") == StdinTaken(0, closed=True)
    await gone(pid)
    assert "does not hold this channel" in (await read(world)).error


async def test_a_closed_channel_ends_its_process_and_is_forgotten(world: World) -> None:
    before = len(os.listdir("/proc/self/fd"))
    await shell(world, "echo $$; exec sleep 60", stdin=True)
    pid = int((await read(world)).data)
    assert [await told(world, ChannelClose("c")), await told(world, ChannelClose("c"))] == ["", ""]
    await gone(pid)
    assert "does not hold this channel" in (await put(world, 0, b"x")).error
    await world.until(lambda: len(os.listdir("/proc/self/fd")) <= before)


async def test_the_number_of_channels_of_a_node_is_bounded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "CHANNELS_MAX", 1)
    await shell(world, "sleep 60")
    assert "which is the maximum" in await opened(world, Exec(("true",)), "d")
    await told(world, ChannelClose("c"))
    assert await opened(world, Exec(("true",)), "d") == ""


async def test_a_port_is_reached_only_when_the_job_listens_there(world: World) -> None:
    port, none = free_ports(2)
    await shell(world, f'exec {sys.executable} -c "{LISTEN}" {port}', "server")
    assert (await read(world, name="server")).data == b"up"
    assert await opened(world, Forward(port)) == ""
    assert f"nothing listens on port {none}" in await opened(world, Forward(none), "d")
    with socket.create_server(("127.0.0.1", 0)) as mine:
        assert "is not the job's" in await opened(world, Forward(mine.getsockname()[1]), "d")


async def test_an_attempt_that_is_not_here_has_no_channels(world: World) -> None:
    assert "does not answer" in await told(
        world, ChannelOpen("c", JobId("other"), 1, Exec(("true",)))
    )
    assert "does not answer" in await told(world, ChannelOpen("c", JOB, 2, Exec(("true",))))


async def test_a_stopped_agent_ends_its_channels_and_no_job(world: World) -> None:
    await shell(world, "echo $$; exec sleep 60")
    pid = int((await read(world)).data)
    await world.end()
    await gone(pid)
    await world.begin()
    assert world.facts(f.JobFinished) == []
    await shell(world, "echo again", "d")
    assert (await read(world, name="d")).data == b"again\n"
