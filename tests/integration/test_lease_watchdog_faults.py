"""The lease watchdog when something fails: the machine, a name that lies, a lease renewed late."""

import asyncio
import contextlib
import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from libs.common.errors import Refused
from services.node_agent.core.observations import GuardChanged
from services.node_agent.machine import cgroups, processes
from services.node_agent.machine.cgroup_files import UNIFIED
from services.node_agent.supervisor.lease import boottime_ns, mark_of
from services.node_agent.watchdog import lease_watchdog
from services.node_agent.watchdog.lease_watchdog import Fence, LeaseWatchdog
from tests.cgroups import home as group_home
from tests.integration.test_lease_watchdog import WAIT_S, Watched, opened, reported, soon, until

pytestmark = pytest.mark.skipif(
    not lease_watchdog.HAS_PROGRAM, reason="no lease watchdog was built for this machine"
)


def nothing_starts(*_: object) -> "subprocess.Popen[bytes]":
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


async def test_a_watchdog_that_cannot_be_started_is_reported_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example because this machine may have no more processes. Nothing stays open."""
    jobs, seen = await opened(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    try:
        monkeypatch.setattr(lease_watchdog, "_run", nothing_starts)
        os.kill(jobs.watchdog.pid, signal.SIGKILL)
        await soon(lambda: bool(reported(seen)))
        assert "cannot be started" in jobs.watchdog.missing()
        assert os.strerror(errno.EAGAIN) in jobs.watchdog.missing()
        monkeypatch.undo()
        await soon(lambda: seen[-1] == GuardChanged(""))
        await jobs.watchdog.require("j.1")
        assert len(os.listdir("/proc/self/fd")) == before
    finally:
        await jobs.close()


async def test_an_agent_works_on_while_a_watchdog_does_not_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that hangs in the kernel does not end by SIGKILL. None can be made to hang so here,
    so the signal is not sent.
    """
    monkeypatch.setattr(lease_watchdog, "CLOSE_S", 5.0)
    jobs, _ = await opened(tmp_path)
    first: subprocess.Popen[bytes] = jobs.watchdog._process
    pauses = [0.0]

    async def notice_pauses() -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.01)
            pauses.append(time.monotonic() - before)

    noticing = asyncio.create_task(notice_pauses())
    try:
        monkeypatch.setattr(first, "send_signal", lambda number: None)
        os.kill(first.pid, signal.SIGSTOP)
        await soon(lambda: jobs.watchdog.restarts == 1)
        assert max(pauses) < 4.0
    finally:
        noticing.cancel()
        with contextlib.suppress(ProcessLookupError):  # the next watchdog has killed it
            os.kill(first.pid, signal.SIGKILL)
        await jobs.close()


async def test_an_agent_starts_without_a_watchdog_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_watchdog, "PRESENT_S", 0.2)
    monkeypatch.setattr(lease_watchdog, "_run", nothing_starts)
    jobs, _ = await opened(tmp_path)
    try:
        with pytest.raises(Refused, match="it cannot be started"):
            await jobs.watchdog.require("j.1")
    finally:
        await jobs.close()


async def test_an_agent_that_no_longer_watches_its_watchdog_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`run` is one of the agent's serving tasks."""
    jobs, _ = await opened(tmp_path)
    try:
        monkeypatch.setattr(lease_watchdog, "BEAT", None)
        with pytest.raises(AttributeError, match="size"):
            await asyncio.wait_for(jobs.watchdog.run(), WAIT_S)
    finally:
        await jobs.close()


def named(name: str) -> "subprocess.Popen[bytes]":
    """Return a process that takes this name once it is written to, and says when it has."""
    code = (
        "import ctypes, sys, time; sys.stdin.readline(); "
        f"ctypes.CDLL(None).prctl(15, {name.encode()!r}, 0, 0, 0); "
        "print(flush=True); time.sleep(600)"
    )
    line = [sys.executable, "-c", code]
    return subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def take_name(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(b"\n")
    process.stdin.flush()
    process.stdout.readline()


def end(process: "subprocess.Popen[bytes]") -> None:
    with process:
        process.kill()


def sleepers(count: int) -> list["subprocess.Popen[bytes]"]:
    return [subprocess.Popen(["sleep", "600"]) for _ in range(count)]


def stop_while_it_lists(pid: int) -> None:
    """Stop the watchdog while it reads /proc, as it does for a sweep."""
    end_at = time.monotonic() + WAIT_S
    while time.monotonic() < end_at:
        os.kill(pid, signal.SIGSTOP)
        while (found := processes.process(pid)) is not None and found.state != "T":
            pass
        for each in os.listdir(f"/proc/{pid}/fd"):
            if os.readlink(f"/proc/{pid}/fd/{each}") == "/proc":
                return
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.0002)
    raise AssertionError("the watchdog was never seen while it listed processes")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may look into the watchdog")
async def test_a_job_that_begins_under_a_lease_renewed_during_a_sweep_lives(tmp_path: Path) -> None:
    jobs, _ = await opened(tmp_path)
    many = sleepers(150)
    supervisor = named(mark_of(jobs.lease_path))
    try:
        pid = jobs.watchdog.pid
        stop_while_it_lists(pid)
        jobs.extend_lease(boottime_ns() + 60_000_000_000)
        take_name(supervisor)
        went_on_ns = boottime_ns()
        os.kill(pid, signal.SIGCONT)
        await soon(lambda: jobs.watchdog.beat.at_ns > went_on_ns)
        assert jobs.watchdog.pid == pid
        assert supervisor.poll() is None
    finally:
        for each in (*many, supervisor):
            end(each)
        await jobs.close()


async def test_a_hardware_watchdog_is_armed_also_after_the_lease_while_no_job_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watchdog before this one may have left it running, and nothing else tends it."""
    monkeypatch.setattr(lease_watchdog, "PRESENT_S", 1.0)
    device = tmp_path / "device"
    device.touch()
    jobs, seen = await opened(tmp_path, Fence(str(device), 5))
    try:
        await soon(lambda: bool(reported(seen)))
        assert jobs.lease.deadline_ns() == 0
        assert "cannot use the hardware watchdog" in reported(seen)[0]
    finally:
        await jobs.close()


async def test_a_hardware_watchdog_is_not_armed_while_a_job_lives_and_the_lease_nears_its_end(
    tmp_path: Path,
) -> None:
    """It would give a job that outlives its lease more time than the scheduler waits."""
    device = tmp_path / "device"
    device.touch()
    jobs, _ = await opened(tmp_path)
    jobs.extend_lease(boottime_ns() + 60_000_000_000)
    supervisor = named(mark_of(jobs.lease_path))
    take_name(supervisor)
    await jobs.watchdog.close(False)
    second = LeaseWatchdog(jobs.lease_path, {}, Fence(str(device), 100))
    try:
        await second.start(lambda why, armed_ms: None)
        begun_ns = boottime_ns()
        await soon(lambda: second.beat.at_ns > begun_ns)
        assert second.missing() == "" and device.read_text() == ""
        end(supervisor)
        await soon(lambda: device.read_text().startswith("V"))
    finally:
        end(supervisor)
        await second.close(False)
        await jobs.close()


async def test_a_younger_process_with_the_name_of_the_watchdog_is_left_alone(
    tmp_path: Path,
) -> None:
    """Else the watchdog that is being replaced might end the next one."""
    jobs, _ = await opened(tmp_path)
    mark = mark_of(jobs.lease_path)
    younger = named(mark.replace("muster", "mwatch"))
    supervisor = named(mark)
    try:
        take_name(younger)
        take_name(supervisor)
        await soon(lambda: supervisor.poll() is not None)
        assert younger.poll() is None
    finally:
        end(younger)
        end(supervisor)
        await jobs.close()


def test_a_job_that_calls_itself_the_runner_of_a_container_with_no_real_id_ends_nothing_else(
    tmp_path: Path,
) -> None:
    """Its name would be a part of the control groups of others, as "system.slice" is."""
    with group_home() as made:
        if UNIFIED not in made.dirs:
            pytest.skip("no unified hierarchy here")
        other = sleepers(1)[0]
        parent = os.path.dirname(made.dirs[UNIFIED])
        cgroups.take_in({UNIFIED: parent}, "notsosystem.slice", other.pid)
        liar = (
            "import ctypes, time; ctypes.CDLL(None).prctl(15, b'mc:system.slice', 0, 0, 0); "
            "time.sleep(600)"
        )
        watched = Watched(tmp_path / "a", sys.executable, "-c", liar, home=made.dirs)
        try:
            watched.stop("agent", "zygote", "supervisor")
            until(lambda: not watched.alive())
            assert other.poll() is None
        finally:
            watched.end()
            end(other)
