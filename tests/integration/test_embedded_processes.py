"""The watching of children, with small scripts in their place."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from libs.embedded import living, processes
from libs.embedded.processes import Child, Spec

WAIT_S = 10.0


def child_of(tmp_path: Path, script: str, said: list[str], name: str = "stand-in") -> Child:
    spec = Spec(
        name, [sys.executable, "-c", script], {"PATH": os.environ["PATH"]}, tmp_path / f"{name}.log"
    )
    return Child(spec, said.append, lambda: None)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not holds():
            await asyncio.sleep(0.01)


SLEEPS = "import time; print('sleeping', flush=True); time.sleep(60)"
STUBBORN = (
    "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); "
    "time.sleep(60)"
)


async def test_child_that_exits_is_restarted_and_its_last_line_is_reported(tmp_path: Path) -> None:
    said: list[str] = []
    child = child_of(tmp_path, "import sys; print('the reason'); sys.exit(1)", said)
    keeping = asyncio.create_task(child.keep())
    await until(lambda: child.deaths >= 2)
    await child.end(1.0)
    await keeping
    assert said[0] == "stand-in exited with 1; restarting it in 0.1 s: the reason"
    assert "in 0.2 s" in said[1]


async def test_killed_child_is_restarted(tmp_path: Path) -> None:
    said: list[str] = []
    child = child_of(tmp_path, SLEEPS, said)
    keeping = asyncio.create_task(child.keep())
    await until(lambda: "sleeping" in processes.last_line(child.spec.log))
    first = child.ticket
    child.signal(signal.SIGKILL)
    await until(lambda: child.living and child.ticket != first)
    await child.end(5.0)
    await keeping
    assert said == ["stand-in was ended by SIGKILL; restarting it in 0.1 s: sleeping"]


async def test_child_that_needs_a_person_three_times_is_reported_and_not_restarted(
    tmp_path: Path,
) -> None:
    said: list[str] = []
    child = child_of(tmp_path, "import sys; print('the archive is damaged'); sys.exit(3)", said)
    await asyncio.wait_for(child.keep(), WAIT_S)
    assert (child.given_up, child.deaths) == (True, 3)
    assert (
        "stand-in NEEDS YOU" in said[-1]
        and "the archive is damaged" in said[-1]
        and "muster up" in said[-1]
    )


async def test_child_that_serves_long_between_faults_is_restarted_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "IN_A_ROW_S", 0.1)
    child = child_of(tmp_path, "import sys; sys.exit(3)", [])
    keeping = asyncio.create_task(child.keep())
    await until(lambda: child.deaths > processes.NEEDS_PERSON_MAX)
    await child.end(1.0)
    await keeping
    assert not child.given_up


async def test_child_whose_state_differs_is_restarted_and_reported_after_three_times(
    tmp_path: Path,
) -> None:
    said: list[str] = []
    child = child_of(tmp_path, "import sys; print('keys differ'); sys.exit(5)", said)
    keeping = asyncio.create_task(child.keep())
    await until(lambda: child.deaths >= 4)
    await child.end(1.0)
    await keeping
    reports = [line for line in said if "NEEDS YOU" in line]
    assert reports and "3 times in a row" in reports[0]
    assert "muster cluster verify" in reports[0]
    assert (child.given_up, "keys differ" in said[0]) == (False, True)


async def test_command_that_cannot_be_started_is_tried_again(tmp_path: Path) -> None:
    said: list[str] = []
    child = Child(
        Spec("gone", [str(tmp_path / "nothing")], {}, tmp_path / "gone.log"),
        said.append,
        lambda: None,
    )
    keeping = asyncio.create_task(child.keep())
    await until(lambda: child.deaths >= 1)
    await child.end(1.0)
    await keeping
    assert "cannot be started" in said[0]


async def test_child_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    said: list[str] = []
    child = child_of(tmp_path, STUBBORN, said)
    keeping = asyncio.create_task(child.keep())
    await until(lambda: "deaf" in processes.last_line(child.spec.log))
    await child.end(0.2)
    await keeping
    assert said == ["stand-in did not stop within 0 s and was killed"]


async def test_end_during_the_back_off_pause_restarts_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    child = child_of(tmp_path, "import sys; sys.exit(1)", said)
    keeping = asyncio.create_task(child.keep())
    await until(lambda: child.deaths >= 3)
    await child.end(1.0)
    await asyncio.wait_for(keeping, WAIT_S)
    assert not child.living


def test_child_ends_when_its_launcher_is_killed(tmp_path: Path) -> None:
    script = (
        "import subprocess, sys; from libs.embedded.living import die_with_parent; "
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], "
        "preexec_fn=die_with_parent()); "
        "print(child.pid, flush=True); child.wait()"
    )
    launcher = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert launcher.stdout is not None
    child = living.ticket(int(launcher.stdout.readline()))
    assert child is not None
    launcher.kill()
    launcher.wait()
    launcher.stdout.close()
    assert living.wait_gone([child], WAIT_S)


def test_process_is_identified_by_pid_and_start_time() -> None:
    own = living.ticket(os.getpid())
    assert own is not None and living.is_living(own)
    assert not living.is_living(living.Ticket(own.pid, own.start_ticks + 1, own.boot_id))


def test_processes_of_a_killed_launcher_are_ended() -> None:
    process = subprocess.Popen([sys.executable, "-c", SLEEPS], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    known = living.ticket(process.pid)
    assert known is not None
    living.end([known], 5.0)
    assert process.wait() == -signal.SIGTERM
    process.stdout.close()


def test_large_log_is_rotated_and_the_oldest_removed(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    for number in range(5):
        log.write_bytes(bytes([65 + number]) * processes.LOG_BYTES_MAX)
        processes.rotate(log)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["x.log.1", "x.log.2", "x.log.3"]
    assert (tmp_path / "x.log.1").read_bytes()[:1] == b"E"


def test_a_small_log_is_kept(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("a line\n\n")
    processes.rotate(log)
    assert processes.last_line(log) == "a line"
