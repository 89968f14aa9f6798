"""Kept traces are bounded and whole, whatever a job wrote and whichever step failed."""

import asyncio
import sys
from pathlib import Path

import msgspec
import pytest

from libs.common.messages.trace_messages import FAILED, READY, TracedProcess, TraceState
from libs.common.model import JobId
from services.node_agent.tracing import capture
from services.node_agent.tracing.kept import LEAST_BYTES, STATE, STATE_BYTES, Kept, Note

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
