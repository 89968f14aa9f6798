"""The markers and records of a job directory."""

import os
from pathlib import Path

import pytest

from services.node_agent.supervision import lost, processes, records


def test_one_claim_wins(tmp_path: Path) -> None:
    job_dir = str(tmp_path / "job.1")
    first, second = lost._nobody("job", 1, 0), lost._nobody("job", 1, 7)
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
    assert not records.claim(job_dir, lost._nobody("job", 1, 0))


def test_an_exit_is_recorded_in_the_room_reserved_for_it(tmp_path: Path) -> None:
    records.place_marker(str(tmp_path), {"rank": 0})
    assert records.read_exit(str(tmp_path)) is None
    record = records.unexecuted(lost._nobody("j" * 200, 1, 0), "exited", "d" * 10_000, 5)
    record["leftovers"] = [records.Leftover(pid=n, command="c" * processes.MAX_COMMAND_CHARS) for n in range(99)]
    records.write_exit(str(tmp_path), record)
    found = records.read_exit(str(tmp_path))
    assert found is not None and (found["reason"], len(found["leftovers"])) == ("exited", records.MAX_LEFTOVERS)
    assert (tmp_path / records.EXIT).stat().st_size == records.EXIT_BYTES


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
