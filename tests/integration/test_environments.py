"""Processes are found by their environment, and one whose environment cannot be read holds up none.

A named pipe stands for the environment of a process that hangs in a driver.
"""

import os
import time
from pathlib import Path

from services.node_agent.machine import environments, processes

PAIR = b"MUSTER_X=1"
WITHIN_S = 0.4


def described(proc: Path, pid: int, environment: bytes = b"") -> Path:
    """Write the environment of a process; without one, a pipe that blocks each reader."""
    folder = proc / str(pid)
    folder.mkdir()
    path = folder / "environ"
    if environment:
        path.write_bytes(environment)
    else:
        os.mkfifo(path)
    return path


def test_a_process_whose_environment_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    described(tmp_path, 1, b"A=1\0" + PAIR + b"\0")
    hangs = described(tmp_path, 2)
    described(tmp_path, 3, b"A=1\0")
    described(tmp_path, 4, PAIR)
    pids = [1, 2, 3, 4, 5]
    assert environments.holding(PAIR, pids, str(tmp_path), WITHIN_S) == [1, 4]
    assert environments._hanging == {2}
    assert environments.holding(PAIR, pids, str(tmp_path)) == [1, 4]
    with hangs.open("wb") as pipe:
        pipe.write(PAIR)
    until_s = time.monotonic() + 10
    while environments._hanging:
        assert time.monotonic() < until_s, "a read that ended still counts as hanging"
        time.sleep(0.01)


def test_the_threads_that_wait_for_hanging_processes_are_bounded(tmp_path: Path) -> None:
    most = environments.HANGING_MAX
    pipes = [described(tmp_path, pid) for pid in range(1, most + 2)]
    described(tmp_path, most + 2, PAIR)
    pids = range(1, most + 3)
    assert environments.holding(PAIR, pids, str(tmp_path), 0.001) == []
    assert len(environments._hanging) == most
    for path in pipes[:most]:
        path.open("wb").close()
    until_s = time.monotonic() + 10
    while environments._hanging:
        assert time.monotonic() < until_s, "a read that ended still counts as hanging"
        time.sleep(0.01)


def test_real_processes_are_found_by_their_environment() -> None:
    path = Path("/proc/self/environ").read_bytes().split(b"\0")[0]
    assert os.getpid() in environments.holding(path, processes.all_pids())
