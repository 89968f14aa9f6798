"""A supervisor already serves the job of another tenant, before the attempt that it served is
released.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from libs.common.model import AttemptRef, JobId
from services.node_agent.directories.job_directories import JobDirectories
from services.node_agent.machine import processes
from services.node_agent.memory.grants import Holder
from services.node_agent.memory.peers import belongs, supervised
from services.node_agent.supervision import lost
from services.node_agent.supervisor import records
from tests.memory_world import attempt

REF = AttemptRef(JobId("job"), 1)


@pytest.fixture
def child() -> Iterator[Holder]:
    """A process below this one, which is the supervisor."""
    with subprocess.Popen(["sleep", "60"]) as process:
        found = processes.process(process.pid)
        assert found is not None
        yield Holder(process.pid, found.start_ticks)
        process.kill()


def test_a_process_belongs_to_the_attempt_until_its_end_is_recorded(
    tmp_path: Path, child: Holder
) -> None:
    """The end of an attempt is recorded before its supervisor takes the next order."""
    job_dir = attempt(tmp_path).job_dir
    jobs = JobDirectories(tmp_path)
    assert belongs(child, job_dir) and supervised(job_dir)
    assert child.pid in jobs.processes(REF)
    end = records.unexecuted(lost._without_process("job", 1, 0), "exited", "", 5)
    records.write_exit(job_dir, end)
    assert not belongs(child, job_dir) and not supervised(job_dir)
    assert jobs.processes(REF) == []


def test_no_process_belongs_to_an_attempt_of_another_boot(
    tmp_path: Path, child: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_dir = attempt(tmp_path).job_dir
    monkeypatch.setattr(processes, "boot_id", lambda: "another")
    assert not belongs(child, job_dir) and not supervised(job_dir)
