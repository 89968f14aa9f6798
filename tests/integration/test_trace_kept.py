"""Kept traces are bounded and whole, whatever a job wrote and whichever step failed."""

import asyncio
import sys
from pathlib import Path

import msgspec
import pytest

from libs.common.messages.trace_messages import (
    FAILED,
    READY,
    TracedProcess,
    TraceList,
    TraceListed,
    TraceState,
)
from libs.common.model import JobId, NodeId
from libs.common.safety.folder_walk import remove_tree
from libs.common.subjects import ask_node
from libs.common.transport.bus_memory import MemoryBus
from services.node_agent.tracing import capture
from services.node_agent.tracing.kept import LEAST_BYTES, STATE, STATE_BYTES, Kept, Note
from services.node_agent.tracing.tracing import Tracing

KEY = "j.1"
TRACE = "0123456789abcdef"


def kept_at(folder: Path) -> Kept:
    return Kept(folder, job_bytes=1 << 30, node_bytes=1 << 30)


def note(*processes: TracedProcess) -> Note:
    state = TraceState(trace=TRACE, job_id=JobId("j"), attempt=1, state=READY, processes=processes)
    return Note("tenant", 1, state)


async def test_the_report_of_an_alignment_is_bounded() -> None:
    program = "import sys; sys.stderr.write('x' * (1 << 20))"
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stderr=asyncio.subprocess.PIPE
    )
    try:
        assert child.stderr is not None
        with pytest.raises(OSError, match="reports more than"):
            await capture.said(child.stderr)
    finally:
        child.kill()
        await child.wait()


def test_a_state_that_is_too_large_is_not_loaded(tmp_path: Path) -> None:
    kept = kept_at(tmp_path)
    folder = kept.place(KEY, TRACE)
    large = note(TracedProcess(rank=0, pid=1, state=FAILED, error="A" * STATE_BYTES))
    (folder / STATE).write_bytes(msgspec.json.encode(large))
    kept.load()
    assert (kept.notes, folder.exists()) == ({}, False)


def test_the_state_of_a_trace_counts(tmp_path: Path) -> None:
    kept = kept_at(tmp_path)
    folder = kept.place(KEY, TRACE)
    kept.add(folder, note(TracedProcess(rank=0, pid=1, state=READY, size_bytes=LEAST_BYTES)))
    size = LEAST_BYTES + (folder / STATE).stat().st_size
    assert kept.sizes == {str(folder): size}
    following = kept_at(tmp_path)
    following.load()
    assert following.sizes == {str(folder): size}


def test_only_files_of_ready_processes_are_read(tmp_path: Path) -> None:
    kept = kept_at(tmp_path)
    folder = kept.place(KEY, TRACE)
    (folder / "0.json.gz").write_bytes(b"a part of a member")
    (folder / "1.json.gz").write_bytes(b"whole")
    failed = TracedProcess(rank=0, pid=1, state=FAILED)
    kept.add(folder, note(failed, TracedProcess(rank=1, pid=2, state=READY, size_bytes=5)))
    assert [kept.read(KEY, TRACE, number, 0).data for number in (0, 1)] == [b"", b"whole"]


def test_a_trace_whose_state_cannot_be_written_is_removed(tmp_path: Path) -> None:
    kept = kept_at(tmp_path)
    folder = kept.place(KEY, TRACE)
    (folder / STATE).mkdir()
    with pytest.raises(IsADirectoryError):
        kept.add(folder, note())
    assert (kept.notes, folder.exists()) == ({}, False)


def test_a_trace_that_is_larger_than_the_bound_fails_with_the_reason(tmp_path: Path) -> None:
    kept = Kept(tmp_path, job_bytes=2 << 20, node_bytes=1 << 30)
    folder = kept.place(KEY, TRACE)
    (folder / "0.json.gz").write_bytes(b"whole")
    large = TracedProcess(rank=0, pid=1, state=READY, size_bytes=3 << 20)
    state = kept.add(folder, note(large)).state
    assert (state.state, state.processes[0].state) == (FAILED, FAILED)
    assert "the trace has 3 MiB on this node, which keeps at most 2 MiB" in state.text
    assert kept.state(KEY, TRACE) == state
    assert [path.name for path in folder.iterdir()] == [STATE]


async def test_a_list_of_traces_fits_into_one_message(tmp_path: Path) -> None:
    tracing = Tracing(tmp_path, 1 << 30, 1 << 30)
    await tracing.adopt({})
    failed = TracedProcess(rank=0, pid=1, state=FAILED, error="\u20ac" * 500)
    for number in range(10):
        trace = f"{number:016x}"
        folder = tracing.kept.place(KEY, trace)
        tracing.kept.add(folder, note(*[failed] * 64))
    bus = MemoryBus()
    await tracing.listen(bus, "n1")
    ask = msgspec.msgpack.encode(TraceList(JobId("j")))
    answer = await bus.request(ask_node(NodeId("n1"), "trace"), ask, 5)
    assert len(answer) < 1 << 20
    assert msgspec.msgpack.decode(answer, type=TraceListed).traces
    await tracing.close()
    if not tracing.folders.root.startswith(str(tmp_path)):
        remove_tree(tracing.folders.root)
