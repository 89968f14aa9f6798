"""The evidence of real processes as ranks, and the verdict on it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from libs.common.diagnosis import evidence as e
from libs.common.diagnosis.rules import diagnose
from libs.common.model import NodeId
from services.api_gateway.diagnosis.asking import NODE_S
from services.node_agent.diagnosis import rank_processes as rank_processes_module
from services.node_agent.diagnosis.collecting import COLLECT_S, OVER, Attempted, collect
from services.node_agent.diagnosis.launch_hook import HOOK
from services.node_agent.diagnosis.rank_processes import (
    moved_bytes,
    moved_in_all,
    rank_processes,
)

RANKS = 4
STUCK = 2
PROGRAM = """
import os, threading, time
def all_reduce(): time.sleep(60)
def step(): all_reduce()
def stuck():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
print("ready", flush=True)
stuck() if os.environ["RANK"] == "2" else step()
"""


def variables(rank: int) -> dict[str, str]:
    local = {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(RANKS)}
    return {**os.environ, "PYTHONPATH": HOOK, "RANK": str(rank), "WORLD_SIZE": str(RANKS), **local}


@contextmanager
def ranks(folder: Path) -> Iterator[list["subprocess.Popen[bytes]"]]:
    (folder / "train.py").write_text(PROGRAM)
    command = [sys.executable, str(folder / "train.py")]
    started = [
        subprocess.Popen(command, env=variables(rank), stdout=subprocess.PIPE)
        for rank in range(RANKS)
    ]
    try:
        for process in started:
            assert process.stdout is not None
            process.stdout.readline()
        time.sleep(0.1)  # a moment to be where it stays
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


def examined(folder: Path, *processes: "subprocess.Popen[bytes]") -> e.NodeSeen:
    pids = [process.pid for process in processes]
    gpus = [f"GPU-{number}" for number in range(RANKS)]
    attempted = Attempted(NodeId("n"), 0, pids, gpus, (), str(folder), ())
    return collect(attempted, sleep=lambda _: time.sleep(0.02))


def test_the_rank_that_the_others_wait_for_is_found(tmp_path: Path) -> None:
    with ranks(tmp_path) as started:
        seen = examined(tmp_path, *started)
    verdict = diagnose([seen])
    assert (verdict.kind, verdict.cause, verdict.suspects[0].rank) == (e.APART, "lock", STUCK)
    assert "stuck (train.py:8)" in verdict.sentence
    assert [one.gpu for one in seen.processes] == ["GPU-0", "GPU-1", "GPU-2", "GPU-3"]
    assert all(one.looks and one.moved_bytes == 0 for one in seen.processes)


def test_a_stopped_rank_is_found(tmp_path: Path) -> None:
    with ranks(tmp_path) as started:
        os.kill(started[1].pid, signal.SIGSTOP)
        verdict = diagnose([examined(tmp_path, *started)])
    assert (verdict.kind, verdict.suspects[0].rank) == (e.STOPPED, 1)


def test_a_rank_that_ended_is_found(tmp_path: Path) -> None:
    with ranks(tmp_path) as started:
        started[3].kill()
        started[3].wait()
        verdict = diagnose([examined(tmp_path, *started)])
    assert (verdict.kind, verdict.suspects[0].rank) == (e.DEAD, 3)


def test_a_launcher_and_a_shell_are_no_ranks(tmp_path: Path) -> None:
    own = {**variables(0), "RANK": "0", "WORLD_SIZE": "1"}
    launcher = subprocess.Popen(["sleep", "60"], env=own)
    shell = subprocess.Popen(["sh", "-c", "sleep 60; true"], env=variables(1))
    try:
        with ranks(tmp_path) as started:
            pids = [launcher.pid, shell.pid, *(process.pid for process in started)]
            found = rank_processes(pids)
            assert [one.pid for one in found] == [process.pid for process in started]
    finally:
        for process in (launcher, shell):
            process.kill()
            process.wait()


# A rank that renames itself and starts a helper, for example Python's resource tracker.
RENAMED = """
import os, subprocess, sys, time
open("/proc/self/comm", "w").write("trainer")
helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(os.getpid(), helper.pid, flush=True)
time.sleep(60)
"""


@contextmanager
def renamed(folder: Path, env: dict[str, str], script: str) -> Iterator[list[int]]:
    """Yield the pids of the script, the renamed rank below it, and the rank's helper."""
    (folder / "renamed.py").write_text(RENAMED)
    command = script.format(python=sys.executable, program=folder / "renamed.py")
    outer = subprocess.Popen(
        ["sh", "-c", command], env=env, stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert outer.stdout is not None
        yield [outer.pid, *map(int, outer.stdout.readline().split())]
    finally:
        os.killpg(outer.pid, signal.SIGKILL)
        outer.wait()


def test_a_renamed_rank_below_a_shell_counts_and_its_helper_does_not(tmp_path: Path) -> None:
    with renamed(tmp_path, variables(1), "{python} {program}; true") as (shell, rank, helper):
        for pids in ([shell, rank, helper], [helper, rank, shell]):
            assert [one.pid for one in rank_processes(pids)] == [rank]


def test_a_launcher_of_one_rank_is_not_the_rank(tmp_path: Path) -> None:
    launcher = 'import os; os.environ["TORCHELASTIC_RUN_ID"] = "1"; os.system("{python} {program}")'
    script = f"exec {{python}} -c '{launcher}'"
    with renamed(tmp_path, variables(1), script) as (outer, rank, helper):
        assert [one.pid for one in rank_processes([outer, rank, helper])] == [rank]


def test_a_job_cannot_make_the_look_at_its_bytes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = time.monotonic() + 60
    with ranks(tmp_path) as started:
        pids = [process.pid for process in started]
        assert moved_in_all(pids, (), later) == sum(map(moved_bytes, pids))
        assert moved_in_all(pids, (), time.monotonic()) == 0
        monkeypatch.setattr(rank_processes_module, "LOOKED_AT_MAX", 1)
        assert moved_in_all(pids, (), later) == moved_bytes(pids[0])


def test_at_the_deadline_the_evidence_that_there_is_counts(tmp_path: Path) -> None:
    with ranks(tmp_path) as started:
        pids = [process.pid for process in started]
        (tmp_path / "nccl_trace_rank_0").write_bytes(b"0")
        attempted = Attempted(NodeId("n"), 0, pids, [], (), str(tmp_path), ())
        seen = collect(attempted, deadline_s=time.monotonic())
    assert [(one.state, one.looks) for one in seen.processes] == [("S", ())] * RANKS
    assert [note for note in seen.notes if OVER in note]
    assert COLLECT_S < NODE_S


def test_a_job_without_ranks_has_no_evidence(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "RANK"}
    process = subprocess.Popen(["sleep", "60"], env=env)
    try:
        seen = examined(tmp_path, process)
    finally:
        process.kill()
        process.wait()
    assert (seen.processes, seen.processes_all) == ((), 1)
