"""The agent's part of traces: doors, captures, alignment by a process of its own, and bounds.

The traced processes are real, and speak the datagrams of PyTorch's profiler (`tests/traced.py`).
"""

import asyncio
import gzip
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from libs.common.messages import trace_messages as m
from libs.common.model import JobSpec
from libs.common.safety.folder_walk import remove_tree
from libs.common.subjects import ask_node
from libs.common.traces.chrome_events import LEAD_IN_NS
from libs.common.traces.clock_offset import ClockPoint
from libs.common.transport.bus_memory import MemoryBus
from services.node_agent.tracing import capture, files, observing
from services.node_agent.tracing import tracing as tracing_module
from services.node_agent.tracing.tracing import DAEMON, LOG_LEVEL, SOCKETS, Tracing
from tests.integration.peer_uploads_world import start_order
from tests.integration.test_pulled_agent import launch_of

KEY = "j.1"
TRACE = "0123456789abcdef"
SECOND = 1_000_000_000
SHIFT = 3 * SECOND


class World:
    """One agent's traces on a bus, and processes of the job `j`."""

    def __init__(self, tracing: Tracing, bus: MemoryBus) -> None:
        self.tracing, self.bus = tracing, bus
        self.children: list[subprocess.Popen[bytes]] = []

    async def ask(self, ask: m.TraceAsk, kind: type = m.TraceState) -> m.TraceState:
        answer = await self.bus.request(ask_node("n1", "trace"), msgspec.msgpack.encode(ask), 5)
        return msgspec.msgpack.decode(answer, type=kind)

    def start(self, env: dict[str, str], rank: int) -> None:
        path = Path(__file__).parents[1] / "traced.py"
        self.children.append(
            subprocess.Popen([sys.executable, path], env={**env, "RANK": str(rank)})
        )

    async def callers(self, count: int, key: str = KEY) -> None:
        door = self.tracing.doors[key]
        async with asyncio.timeout(10):
            while len(door.living()) < count:
                await asyncio.sleep(0.02)

    async def until(self, *states: str) -> m.TraceState:
        async with asyncio.timeout(20):
            while (found := await self.ask(m.TracePoll(TRACE, "j", 1))).state not in states:
                await asyncio.sleep(0.05)
        return found


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    tracing = Tracing(tmp_path, job_bytes=1 << 20, node_bytes=1 << 20)
    await tracing.adopt({})
    found = World(tracing, MemoryBus())
    await tracing.listen(found.bus, "n1")
    yield found
    for child in found.children:
        child.kill()
        child.wait()
    for key in list(tracing.doors):
        tracing.let_go(key)
    await tracing.close()
    if not tracing.folders.root.startswith(str(tmp_path)):
        remove_tree(tracing.folders.root)


def begin(start_ns: int, duration_ms: int = 200, ranks: tuple[int, ...] = ()) -> m.TraceBegin:
    return m.TraceBegin(
        trace=TRACE,
        job_id="j",
        attempt=1,
        start_ns=start_ns,
        duration_ms=duration_ms,
        point=ClockPoint(start_ns, SHIFT, 40),
        origin_ns=start_ns + SHIFT,
        place=5,
        ranks=ranks,
    )


async def test_all_processes_of_a_job_are_traced_on_the_reference_clock(world: World) -> None:
    wish = start_order("j")
    launch = world.tracing.hold(launch_of(wish), wish)
    assert len(f"{launch.env[SOCKETS]}/dynoconfigclient{'x' * 36}") < 108
    for rank in (0, 1):
        world.start(launch.env, rank)
    await world.callers(2)
    clock = await world.ask(m.TraceClock(), m.ClockRead)
    start_ns = time.time_ns() + SECOND
    begun = await world.ask(begin(start_ns))
    assert [process.rank for process in begun.processes] == [0, 1]
    assert (await world.ask(begin(start_ns))).fault == m.BUSY
    assert clock.received_ns <= clock.answered_ns < start_ns
    await world.until(m.CAPTURED)
    after = ClockPoint(start_ns + SECOND, SHIFT, 60)
    await world.ask(m.TraceFinish(TRACE, "j", 1, after))
    ready = await world.until(m.READY)
    assert ready.error_ns == 60
    assert [p.state for p in ready.processes] == [m.READY, m.READY]
    for number, process in enumerate(ready.processes):
        part = await world.ask(m.TraceRead(TRACE, "j", 1, number, 0), m.TracePart)
        assert part.size_bytes == len(part.data) == process.size_bytes
        text = gzip.decompress(part.data)
        events = msgspec.json.decode(b"[" + text.lstrip(b",\n") + b"]")
        steps = [event for event in events if event["ph"] == "X"]
        assert len(steps) == process.events > 2
        for step in steps:
            due_us = (int(step["args"]["at"]) - start_ns + LEAD_IN_NS) / 1_000
            assert abs(step["ts"] - due_us) < 0.3
            assert step["pid"] == (5 + number) * 1_000 + 1
    assert os.listdir(launch.env[SOCKETS]).count("dynolog") == 1
    assert not [name for name in os.listdir(launch.env[SOCKETS]) if name.endswith(".json")]
    listed = await world.ask(m.TraceList("j"), m.TraceListed)
    assert [trace.trace for trace in listed.traces] == [TRACE]


async def test_only_the_ranks_that_were_named_are_traced(world: World) -> None:
    wish = start_order("j")
    launch = world.tracing.hold(launch_of(wish), wish)
    world.start(launch.env, 0)
    world.start(launch.env, 3)
    await world.callers(2)
    begun = await world.ask(begin(time.time_ns() + SECOND, ranks=(3,)))
    assert [process.rank for process in begun.processes] == [3]


async def test_threads_look_at_the_processes_of_a_job(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = list[threading.Thread]()

    def rank_of(pid: int, member_rank: int) -> int:
        looked.append(threading.current_thread())
        return member_rank

    def libraries(pid: int) -> tuple[str, ...]:
        looked.append(threading.current_thread())
        return ()

    monkeypatch.setattr(observing, "rank_of", rank_of)
    monkeypatch.setattr(observing, "libraries", libraries)
    wish = start_order("j")
    world.start(world.tracing.hold(launch_of(wish), wish).env, 0)
    await world.callers(1)
    await world.ask(begin(time.time_ns() + SECOND))
    async with asyncio.timeout(5):
        while len(looked) < 2:
            await asyncio.sleep(0.02)
    assert threading.main_thread() not in looked


async def test_one_tenant_has_a_share_of_the_traces(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing_module, "TENANT_CAPTURES_MAX", 1)
    orders = [replace(start_order(job), tenant=of) for job, of in zip("jkl", "rrb", strict=True)]
    for wish in orders:
        world.start(world.tracing.hold(launch_of(wish), wish).env, 0)
    for wish in orders:
        await world.callers(1, f"{wish.job_id}.1")
    asks = [
        replace(begin(time.time_ns() + SECOND), trace=f"{number:016x}", job_id=wish.job_id)
        for number, wish in enumerate(orders)
    ]
    assert [(await world.ask(ask)).fault for ask in asks] == ["", m.BUSY, ""]


async def test_a_job_without_a_tracer_says_so(world: World) -> None:
    wish = start_order("j")
    world.tracing.hold(launch_of(wish), wish)
    start_ns = time.time_ns() + SECOND
    assert "no process of the job asks" in (await world.ask(begin(start_ns))).text
    unknown = await world.ask(replace(begin(start_ns), attempt=2))
    assert "does not run on this node" in unknown.text
    invalid = await world.ask(replace(begin(start_ns), trace="../../etc"))
    assert invalid.fault == m.INVALID


async def test_a_process_that_ends_or_is_too_large_fails_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "RAW_BYTES_MAX", 10)
    wish = start_order("j")
    launch = world.tracing.hold(launch_of(wish), wish)
    for rank in (0, 1):
        world.start(launch.env, rank)
    await world.callers(2)
    await world.ask(begin(time.time_ns() + SECOND))
    world.children[0].kill()
    world.children[0].wait()
    failed = await world.until(m.FAILED)
    assert failed.processes[0].error
    assert "trace a shorter time" in failed.processes[1].error


async def test_a_complete_trace_outlives_the_end_of_its_job(world: World) -> None:
    wish = start_order("j")
    launch = world.tracing.hold(launch_of(wish), wish)
    world.start(launch.env, 0)
    await world.callers(1)
    start_ns = time.time_ns() + SECOND // 2
    await world.ask(begin(start_ns, duration_ms=50))
    await world.until(m.CAPTURED)
    world.tracing.let_go(KEY)
    async with asyncio.timeout(10):
        while await asyncio.to_thread(Path(launch.env[SOCKETS]).exists):
            await asyncio.sleep(0.02)
    await world.ask(m.TraceFinish(TRACE, "j", 1, ClockPoint(start_ns, SHIFT, 60)))
    ready = await world.until(m.READY, m.FAILED)
    assert [(p.state, p.error) for p in ready.processes] == [(m.READY, "")]


async def test_an_alignment_that_fails_leaves_no_part_of_a_file(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture, "ALIGN_S", 0.0)
    wish = start_order("j")
    world.start(world.tracing.hold(launch_of(wish), wish).env, 0)
    await world.callers(1)
    start_ns = time.time_ns() + SECOND // 2
    await world.ask(begin(start_ns, duration_ms=50))
    await world.until(m.CAPTURED)
    await world.ask(m.TraceFinish(TRACE, "j", 1, ClockPoint(start_ns, SHIFT, 60)))
    failed = await world.until(m.FAILED)
    assert "it takes too long" in failed.processes[0].error
    assert os.listdir(world.tracing.kept.folder / KEY / TRACE) == ["trace.json"]


async def test_a_job_can_decline_and_may_have_a_daemon_of_its_own(world: World) -> None:
    wish = replace(start_order("j"), spec=JobSpec(command=("true",), env={DAEMON: "0"}))
    assert DAEMON not in world.tracing.hold(launch_of(wish), wish).env
    wish = replace(start_order("j"), spec=JobSpec(command=("true",), env={SOCKETS: "/x"}))
    assert world.tracing.hold(launch_of(wish), wish).env[SOCKETS] == "/x"
    assert world.tracing.doors == {}
    wish = replace(start_order("j"), spec=JobSpec(command=("true",), env={LOG_LEVEL: "0"}))
    assert world.tracing.hold(launch_of(wish), wish).env[LOG_LEVEL] == "0"


async def test_the_next_agent_opens_the_doors_of_living_jobs(world: World, tmp_path: Path) -> None:
    wish = start_order("j")
    launch = world.tracing.hold(launch_of(wish), wish)
    world.start(launch.env, 0)
    await world.callers(1)
    await world.tracing.close()
    following = Tracing(tmp_path, 1 << 20, 1 << 20, origin=lambda ref: ((), "red"))
    await following.adopt({KEY: 4})
    world.tracing = following
    await world.callers(1)
    assert (following.doors[KEY].tenant, following.doors[KEY].rank) == ("red", 4)


async def test_without_a_state_directory_there_are_no_traces() -> None:
    tracing, wish = Tracing(), start_order("j")
    assert tracing.hold(launch_of(wish), wish) == launch_of(wish)
    assert "MUSTER_TRACES" in (await tracing._begin(begin(1))).text
