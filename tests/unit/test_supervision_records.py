"""The markers and records of a job directory."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from libs.common.model import AttemptRef, JobId
from services.node_agent.directories.job_directories import JobDirectories
from services.node_agent.machine import processes
from services.node_agent.supervision import lost
from services.node_agent.supervisor import records


def test_one_claim_wins(tmp_path: Path) -> None:
    job_dir = str(tmp_path / "job.1")
    first, second = lost._without_process("job", 1, 0), lost._without_process("job", 1, 7)
    assert not records.claim(job_dir, first)
    records.place_marker(job_dir, {"rank": 3})
    assert records.read_identity(job_dir) is None
    assert records.claim(job_dir, first)
    assert not records.claim(job_dir, second)
    assert records.read_identity(job_dir) == first
    assert records.read_rank(job_dir) == 3
    assert sorted(os.listdir(job_dir)) == [records.EXIT, records.MARKER]


def test_a_forgotten_attempt_cannot_be_claimed(tmp_path: Path) -> None:
    job_dir = str(tmp_path / "job.1")
    records.place_marker(job_dir, {"rank": 3})
    os.rename(f"{job_dir}/{records.MARKER}", f"{job_dir}/{records.DONE}")
    assert not records.claim(job_dir, lost._without_process("job", 1, 0))


def test_an_exit_is_recorded_in_the_room_reserved_for_it(tmp_path: Path) -> None:
    records.place_marker(str(tmp_path), {"rank": 0})
    assert records.read_exit(str(tmp_path)) is None
    record = records.unexecuted(lost._without_process("j" * 200, 1, 0), "exited", "d" * 10_000, 5)
    record["leftovers"] = [records.Leftover(pid=n, start_ticks=n, name="n" * 15) for n in range(99)]
    records.write_exit(str(tmp_path), record)
    found = records.read_exit(str(tmp_path))
    assert found is not None and (found["reason"], len(found["leftovers"])) == (
        "exited",
        records.MAX_LEFTOVERS,
    )
    assert found["leftovers_more"] == 99 - records.MAX_LEFTOVERS
    assert (tmp_path / records.EXIT).stat().st_size == records.EXIT_BYTES


def test_leftovers_for_which_there_is_no_room_are_counted(tmp_path: Path) -> None:
    records.place_marker(str(tmp_path), {"rank": 0})
    record = records.unexecuted(lost._without_process("j", 1, 0), "exited", "\ufffd" * 400, 5)
    record["leftovers"] = [
        records.Leftover(pid=n, start_ticks=n, name="\ufffd" * 15) for n in range(16)
    ]
    records.write_exit(str(tmp_path), record)
    found = records.read_exit(str(tmp_path))
    assert found is not None and 0 < found["leftovers_more"] == 16 - len(found["leftovers"]) < 16


def test_a_detail_is_cut_where_json_needs_many_bytes_for_a_character(tmp_path: Path) -> None:
    records.place_marker(str(tmp_path), {"rank": 0})
    record = records.unexecuted(lost._without_process("j" * 200, 1, 0), "exited", "💥" * 999, 5)
    records.write_exit(str(tmp_path), record)
    found = records.read_exit(str(tmp_path))
    assert found is not None and found["detail"] == "💥" * 199


def test_a_marker_that_is_too_large_is_refused_and_nothing_is_made(tmp_path: Path) -> None:
    job_dir = tmp_path / "job.1"
    with pytest.raises(ValueError, match="33016 bytes, and 32767 are allowed"):
        records.place_marker(str(job_dir), {"workdir": "/" + "x" * 33_000})
    assert not job_dir.exists()


async def left_of(tmp_path: Path, *pids: int, more: int = 0, boot_id: str = "") -> Sequence[str]:
    """Return the agent's report of an attempt that ended and left these processes."""
    job_dir = tmp_path / "jobs" / "j.1"
    records.place_marker(str(job_dir), {"rank": 0})
    record = records.unexecuted(lost._without_process("j", 1, 0), "exited", "", 5)
    record["boot_id"] = boot_id or processes.boot_id()
    record["leftovers"] = (
        records.leftovers_of(pids)
        + [records.Leftover(pid=1 << 30, start_ticks=1, name="gone")] * more
    )
    records.write_exit(str(job_dir), record)
    return await JobDirectories(tmp_path).leftovers(AttemptRef(JobId("j"), 1))


async def test_a_leftover_is_known_by_its_number_and_its_start(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec("sleep", "60")
    try:
        assert await left_of(tmp_path, process.pid) == [f"{process.pid} sleep"]
    finally:
        process.kill()
        await process.wait()
    assert await JobDirectories(tmp_path).leftovers(AttemptRef(JobId("j"), 1)) == []


async def test_another_process_of_the_same_number_is_no_leftover(tmp_path: Path) -> None:
    assert await left_of(tmp_path, more=3) == []


async def test_attempt_with_unlisted_leftovers_is_not_clean(tmp_path: Path) -> None:
    assert await left_of(tmp_path, more=20) == ["4 more that were not listed"]


async def test_a_machine_that_was_booted_again_has_no_leftovers(tmp_path: Path) -> None:
    assert await left_of(tmp_path, os.getpid(), more=20, boot_id="another") == []


def test_a_torn_record_is_no_record(tmp_path: Path) -> None:
    (tmp_path / records.EXIT).write_bytes(b'{"job_id": "j", "att' + bytes(4000))
    assert records.read_exit(str(tmp_path)) is None


def test_a_marker_is_placed_once(tmp_path: Path) -> None:
    job_dir = str(tmp_path / "jobs" / "job.1")
    records.place_marker(job_dir, {"rank": 3})
    assert records.read_rank(job_dir) == 3
    with pytest.raises(FileExistsError):
        records.place_marker(job_dir, {"rank": 3})


def test_a_process_is_known_by_its_start_time() -> None:
    me = processes.process(os.getpid())
    assert me is not None
    assert processes.is_living(me.pid, me.start_ticks)
    assert not processes.is_living(me.pid, me.start_ticks + 1)
    assert not processes.is_living(0, 0)
