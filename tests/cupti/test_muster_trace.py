"""The CUPTI library, compiled against the stub of this folder, in a process that has no GPU.

The stub makes a kernel each millisecond on a clock of its own. The doors, the capture and the
alignment are the agent's.
"""

import ctypes.util
import gzip
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from libs.common.messages import trace_messages as m
from libs.common.safety.folder_walk import remove_tree
from libs.common.traces.chrome_events import LEAD_IN_NS
from libs.common.transport.bus_memory import MemoryBus
from services.node_agent.tracing.cupti import building
from services.node_agent.tracing.tracing import INJECTION, Tracing
from tests.integration.peer_uploads_world import start_order
from tests.integration.test_pulled_agent import launch_of
from tests.integration.test_tracing_agent import KEY, SECOND, SHIFT, TRACE, World, begin

HERE = Path(__file__).parent
# What the CUDA driver does with CUDA_INJECTION64_PATH.
PROGRAM = """
import ctypes, os, time
assert ctypes.CDLL(os.environ["CUDA_INJECTION64_PATH"]).InitializeInjection() == 1
time.sleep(60)
"""

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the stub's library; return its folder."""
    folder = tmp_path_factory.mktemp("cupti")
    line = ("cc", "-shared", "-fPIC", "-O1", "-Wl,-soname,libcupti.so.13", f"-I{HERE}")
    target = folder / "libcupti.so.13"
    subprocess.run([*line, "-o", target, HERE / "fake_cupti.c", "-lpthread"], check=True)
    return folder


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    def build() -> str:
        return str(building.built(tmp_path / "cupti", [str(HERE)]))

    tracing = Tracing(tmp_path, job_bytes=1 << 22, node_bytes=1 << 22, build=build)
    await tracing.adopt({})
    found = World(tracing, MemoryBus())
    await tracing._build()
    await tracing.listen(found.bus, "n1")
    yield found
    for child in found.children:
        child.kill()
        child.wait()
    tracing.let_go(KEY)
    await tracing.close()
    if not tracing.folders.root.startswith(str(tmp_path)):
        remove_tree(tracing.folders.root)


def started(env: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", PROGRAM], env=env)


async def traced(world: World, stub: Path, **more: str) -> m.TraceState:
    """Trace the program; return the state at the end."""
    wish = start_order("j")
    launch = world.tracing.hold(launch_of(wish), wish)
    assert os.path.dirname(launch.env[INJECTION]) == world.tracing.doors[KEY].folder
    env = {**launch.env, "LD_LIBRARY_PATH": str(stub), "MUSTER_TRACE_PERIOD_MS": "50", **more}
    world.children.append(started(env))
    await world.callers(1)
    start_ns = time.time_ns() + SECOND
    begun = await world.ask(begin(start_ns, 300))
    assert [process.tracer for process in begun.processes] == ["cupti"]
    found = await world.until(m.CAPTURED, m.FAILED)
    if found.state == m.CAPTURED:
        await world.ask(m.TraceFinish(TRACE, "j", 1, begin(start_ns).point))
    return await world.until(m.READY, m.FAILED)


def rows(events: list[dict[str, Any]], cat: str) -> list[dict[str, Any]]:
    return [event for event in events if event.get("cat") == cat]


async def test_kernels_copies_and_calls_are_traced_on_the_wall_clock(
    world: World, stub: Path
) -> None:
    state = await traced(world, stub)
    assert state.state == m.READY
    (process,) = state.processes
    part = await world.ask(m.TraceRead(TRACE, "j", 1, 0, 0), m.TracePart)
    text = gzip.decompress(part.data)
    events: list[dict[str, Any]] = msgspec.json.decode(b"[" + text.lstrip(b",\n") + b"]")
    kernels, nccl = rows(events, "kernel"), rows(events, "nccl")
    assert len(kernels) > 2 and len(nccl) > 2
    assert {kernel["name"] for kernel in kernels} <= {"add(float*, float*)", "_Z3addPfS_"}
    assert {kernel["name"] for kernel in nccl} == {'ncclDevKernel_"Sum"'}
    assert kernels[0]["args"]["grid"] == [2, 3, 4] and kernels[0]["dur"] == 1.5
    assert {copy["name"] for copy in rows(events, "gpu_memcpy")} == {"Memcpy HtoD"}
    assert {call["name"] for call in rows(events, "cuda_runtime")} == {"cudaLaunchKernel"}
    # The stub's clock is 5 s ahead of the monotonic one; the events are on the wall clock.
    assert state.origin_ns == state.start_ns + SHIFT
    # An instruction says the start in whole milliseconds, so a trace begins up to one earlier.
    assert -1_000 < kernels[0]["ts"] - LEAD_IN_NS / 1_000 < 2_000_000
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert "rank 0: GPU 1" in names
    assert process.dropped == 3


async def test_another_subscriber_is_said(world: World, stub: Path) -> None:
    state = await traced(world, stub, FAKE_CUPTI_TAKEN="1")
    assert state.state == m.FAILED
    assert "CUPTI has another subscriber" in state.processes[0].error


async def test_a_tool_that_is_loaded_is_named_before_the_trace(world: World, stub: Path) -> None:
    tool = stub / "libToolsInjection64.so"
    shutil.copyfile(stub / "libcupti.so.13", tool)
    state = await traced(world, stub, LD_PRELOAD=str(tool))
    assert "NVIDIA Nsight Systems (libToolsInjection64.so) has it" in state.processes[0].error


async def test_a_process_without_cupti_says_what_is_missing(world: World, tmp_path: Path) -> None:
    if ctypes.util.find_library("cupti"):
        pytest.skip("this machine has CUPTI in its library path")
    state = await traced(world, tmp_path / "none")
    assert "libcupti cannot be loaded" in state.processes[0].error


def test_what_the_build_lacks_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(building.NotBuilt, match=r"cupti\.h is not found"):
        building.built(tmp_path, [])
    with pytest.raises(building.NotBuilt, match=r"cupti\.h"):
        building.built(tmp_path, [str(tmp_path)])
    monkeypatch.setenv("PATH", "")
    with pytest.raises(building.NotBuilt, match="no C compiler"):
        building.built(tmp_path, [str(HERE)])


def test_the_library_compiles_against_real_headers(tmp_path: Path) -> None:
    if not (found := building.headers()):
        pytest.skip("no CUPTI headers on this machine")
    first = building.built(tmp_path, found)
    assert building.built(tmp_path, found) == first
