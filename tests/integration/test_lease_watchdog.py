"""The lease watchdog ends what outlives its lease, whichever other processes hang or are gone."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import pytest

from libs.common.errors import Refused
from services.node_agent.core.observations import GuardChanged, Observation
from services.node_agent.directories.job_directories import JobDirectories
from services.node_agent.machine import cgroups, processes
from services.node_agent.machine.cgroup_files import UNIFIED
from services.node_agent.supervisor.lease import boottime_ns, mark_of
from services.node_agent.watchdog import lease_watchdog
from services.node_agent.watchdog.beats import LOCKED, REALTIME
from services.node_agent.watchdog.lease_watchdog import Fence, LeaseWatchdog
from tests.cgroups import home as group_home

# A supervisor begins to end its job 2 s before.
LEASE_S: Final = 4.0
WAIT_S: Final = 20.0
# The scheduler starts the job elsewhere after this long (Timing.margin_ms).
MARGIN_S: Final = 1.5
AGENT: Final = Path(__file__).with_name("watched_agent.py")
# Writes its number and the time to a file that attempts share, as fast as it can, in a process of
# its own session too if there is a third argument.
BEATS: Final = """
import os, sys, time
name = sys.argv[2]
if sys.argv[3:] and os.fork() == 0:
    os.setsid()
    name += "-child"
out = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
while True:
    os.write(out, f"{name} {time.clock_gettime_ns(time.CLOCK_BOOTTIME)}\\n".encode())
    time.sleep(0.01)
"""
SLEEP: Final = "import time; time.sleep(600)"

pytestmark = pytest.mark.skipif(
    not lease_watchdog.HAS_PROGRAM, reason="no lease watchdog was built for this machine"
)


class Watched:
    """One agent process with one job."""

    def __init__(
        self,
        state_dir: Path,
        *command: str,
        home: Mapping[str, str],
        lease_s: float = LEASE_S,
        ignore: bool = False,
        limits: Mapping[str, Any] | None = None,
    ) -> None:
        line = [sys.executable, str(AGENT), str(state_dir), json.dumps(dict(home)), str(lease_s)]
        self.agent = subprocess.Popen(
            [*line, str(int(ignore)), json.dumps(limits or {}), *command],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": ":".join(filter(None, sys.path))},
        )
        assert self.agent.stdout is not None
        shown = json.loads(self.agent.stdout.readline())
        self.deadline_ns: int = shown.pop("deadline_ns")
        self.pids: dict[str, int] = shown

    def stop(self, *names: str) -> None:
        for name in names:
            os.kill(self.pids[name], signal.SIGSTOP)

    def alive(self, name: str = "job") -> bool:
        return is_alive(self.pids[name])

    def end(self) -> None:
        for pid in self.pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.agent.wait()
        self.agent.stdout.close()  # type: ignore[union-attr]


def is_alive(pid: int) -> bool:
    found = processes.process(pid)
    return found is not None and found.state not in "ZX"


def until(holds: Callable[[], bool], wait_s: float = WAIT_S) -> None:
    end = time.monotonic() + wait_s
    while not holds():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.005)


def to_deadline(watched: Watched, plus_s: float = 0.0) -> None:
    time.sleep(max(0.0, (watched.deadline_ns - boottime_ns()) / 1e9 + plus_s))


def beats_of(path: Path) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        name, _, at = line.partition(" ")
        found.setdefault(name, []).append(int(at))
    return found


@pytest.fixture(params=["groups", "no groups"])
def home(request: pytest.FixtureRequest) -> Iterator[Mapping[str, str]]:
    if request.param == "no groups":
        yield {}
        return
    with group_home() as made:
        yield made.dirs


def beating(tmp_path: Path, name: str, *child: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", BEATS, str(tmp_path / "beats"), name, *child)


def test_a_job_ends_with_its_lease_although_agent_launcher_and_supervisor_are_stopped(
    tmp_path: Path, home: Mapping[str, str]
) -> None:
    """The next attempt, elsewhere, begins a margin later. The two never overlap."""
    first = Watched(tmp_path / "a", *beating(tmp_path, "first", "child"), home=home)
    second = None
    try:
        until(lambda: len(beats_of(tmp_path / "beats")) == 2)
        first.stop("agent", "zygote", "supervisor")
        to_deadline(first, MARGIN_S)
        second = Watched(tmp_path / "b", *beating(tmp_path, "second"), home={}, lease_s=60.0)
        until(lambda: "second" in beats_of(tmp_path / "beats"))
        beats = beats_of(tmp_path / "beats")
        assert max(*beats["first"], *beats["first-child"]) < first.deadline_ns
        assert not first.alive() and first.alive("agent")
    finally:
        first.end()
        if second is not None:
            second.end()


def test_a_stopped_job_ends_with_its_lease(tmp_path: Path, home: Mapping[str, str]) -> None:
    watched = Watched(tmp_path / "a", sys.executable, "-c", SLEEP, home=home)
    try:
        watched.stop("agent", "zygote", "supervisor", "job")
        until(lambda: not watched.alive())
        assert boottime_ns() < watched.deadline_ns + int(MARGIN_S * 1e9)
    finally:
        watched.end()


def test_a_job_that_ignores_the_lease_outlives_it(tmp_path: Path, home: Mapping[str, str]) -> None:
    watched = Watched(tmp_path / "a", sys.executable, "-c", SLEEP, home=home, ignore=True)
    try:
        watched.stop("agent", "zygote", "supervisor")
        to_deadline(watched, MARGIN_S)
        assert watched.alive() and watched.alive("supervisor")
    finally:
        watched.end()


def test_what_a_killed_supervisor_left_in_its_group_ends_with_the_lease(tmp_path: Path) -> None:
    with group_home() as made:
        watched = Watched(
            tmp_path / "a", *beating(tmp_path, "job", "child"), home=made.dirs, lease_s=4.0
        )
        try:
            until(lambda: "job-child" in beats_of(tmp_path / "beats"))
            watched.stop("agent", "zygote")
            os.kill(watched.pids["supervisor"], signal.SIGKILL)
            to_deadline(watched, MARGIN_S)
            beats = beats_of(tmp_path / "beats")
            assert max(beats["job-child"]) < watched.deadline_ns
        finally:
            watched.end()


def test_a_job_that_uses_up_its_own_processor_time_ends_with_its_lease(tmp_path: Path) -> None:
    """Its supervisor is in the same group, so it may not run either."""
    spin = "import os\nfor _ in range(4):\n    os.fork()\nwhile True: pass"
    with group_home() as made:
        if "cpu" in made.lost:
            pytest.skip(made.lost["cpu"])
        command = (sys.executable, "-I", "-S", "-c", spin)
        watched = Watched(
            tmp_path / "a", *command, home=made.dirs, lease_s=5.0, limits={"cpus_milli": 10}
        )
        try:
            watched.stop("agent", "zygote")
            to_deadline(watched, MARGIN_S)
            assert not watched.alive()
        finally:
            watched.end()


def test_processes_of_a_container_end_with_the_lease_of_its_runner(tmp_path: Path) -> None:
    """The engine starts them, in a group that is named after the container."""
    with group_home() as made:
        if UNIFIED not in made.dirs:
            pytest.skip("no unified hierarchy here")
        name = "0123456789ab" + 52 * "c"
        contained = subprocess.Popen([sys.executable, "-c", SLEEP])
        other = subprocess.Popen([sys.executable, "-c", SLEEP])
        parent = os.path.dirname(made.dirs[UNIFIED])
        cgroups.take_in({UNIFIED: parent}, f"docker-{name}.scope", contained.pid)
        runner = (
            "import ctypes, time; ctypes.CDLL(None).prctl(15, b'mc:0123456789ab', 0, 0, 0); "
            "time.sleep(600)"
        )
        watched = Watched(tmp_path / "a", sys.executable, "-c", runner, home=made.dirs)
        try:
            watched.stop("agent", "zygote", "supervisor")
            until(lambda: not watched.alive())
            assert contained.wait(WAIT_S) == -signal.SIGKILL
            assert other.poll() is None
        finally:
            watched.end()
            for each in (contained, other):
                each.kill()
                each.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_process_of_another_user_with_the_name_of_a_supervisor_is_left_alone(
    tmp_path: Path,
) -> None:
    watched = Watched(tmp_path / "a", sys.executable, "-c", SLEEP, home={})
    mark = mark_of(str(tmp_path / "a" / "lease"))
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        program = shutil.copy(shutil.which("sleep") or "/bin/sleep", f"{folder}/{mark}")
        other = subprocess.Popen([program, "600"], user=65_534, group=65_534, cwd="/")
    try:
        watched.stop("agent", "zygote", "supervisor")
        until(lambda: not watched.alive())
        to_deadline(watched, 0.5)
        assert other.poll() is None
    finally:
        watched.end()
        other.kill()
        other.wait()


# What the agent does about its watchdog.


async def opened(tmp_path: Path, fence: Fence = lease_watchdog.NO_FENCE) -> tuple[Any, list[Any]]:
    seen: list[Observation] = []
    jobs = JobDirectories(tmp_path / "node", fence=fence)
    await jobs.start(seen.append)
    return jobs, seen


def reported(seen: list[Any]) -> list[str]:
    """Why the watchdog was missing, as often as that was reported."""
    return [each.missing for each in seen if isinstance(each, GuardChanged) and each.missing]


async def soon(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not holds():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
async def test_a_watchdog_that_is_stopped_or_killed_is_replaced(
    tmp_path: Path, number: int
) -> None:
    jobs, _ = await opened(tmp_path)
    try:
        watchdog: LeaseWatchdog = jobs.watchdog
        first = watchdog.pid
        os.kill(first, number)
        await soon(lambda: watchdog.pid != first)
        await watchdog.require("j.1")
        assert not is_alive(first) and is_alive(watchdog.pid) and watchdog.restarts == 1
        assert 'muster_lease_watchdog_restarts_total{Hostname="n"} 1' in watchdog.metrics("n")
    finally:
        await jobs.close()


async def test_a_node_without_a_watchdog_starts_no_job_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_watchdog, "PRESENT_S", 0.2)
    jobs, seen = await opened(tmp_path)
    try:
        monkeypatch.setattr(lease_watchdog, "PROGRAM", "/bin/false")
        os.kill(jobs.watchdog.pid, signal.SIGKILL)
        await soon(lambda: bool(reported(seen)))
        with pytest.raises(Refused, match="lease watchdog is missing: it ended"):
            await jobs.watchdog.require("j.1")
        monkeypatch.undo()
        await soon(lambda: seen[-1] == GuardChanged(""))
        await jobs.watchdog.require("j.1")
    finally:
        await jobs.close()


async def test_the_watchdog_of_the_next_agent_ends_the_one_before(tmp_path: Path) -> None:
    watched = Watched(tmp_path / "node", sys.executable, "-c", SLEEP, home={}, lease_s=60.0)
    try:
        os.kill(watched.pids["agent"], signal.SIGKILL)
        watched.agent.wait()
        assert watched.alive("watchdog")
        jobs, _ = await opened(tmp_path)
        await soon(lambda: not watched.alive("watchdog"))
        assert watched.alive() and is_alive(jobs.watchdog.pid)
        await jobs.close()
        assert is_alive(jobs.watchdog.pid), "a job lives, so the watchdog stays"
    finally:
        watched.end()


async def test_a_watchdog_ends_with_its_agent_when_no_job_lives(tmp_path: Path) -> None:
    jobs, _ = await opened(tmp_path)
    await jobs.close()
    assert not is_alive(jobs.watchdog.pid)


def test_a_watchdog_whose_agent_was_killed_ends_once_no_job_lives(tmp_path: Path) -> None:
    watched = Watched(tmp_path / "a", sys.executable, "-c", SLEEP, home={}, lease_s=60.0)
    try:
        for name in ("agent", "job"):
            os.kill(watched.pids[name], signal.SIGKILL)
        until(lambda: not watched.alive("watchdog"))
    finally:
        watched.end()


async def test_a_hardware_watchdog_that_cannot_be_used_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain file takes no time limit. What was opened is closed so that nothing resets."""
    monkeypatch.setattr(lease_watchdog, "PRESENT_S", 1.0)
    device = tmp_path / "device"
    device.touch()
    jobs, seen = await opened(tmp_path, Fence(str(device), 5))
    try:
        jobs.extend_lease(boottime_ns() + 60_000_000_000)
        await soon(lambda: bool(reported(seen)))
        assert "cannot use the hardware watchdog" in reported(seen)[0]
        assert device.read_text().startswith("V")
    finally:
        await jobs.close()


async def test_the_watchdog_says_what_it_lacks(tmp_path: Path) -> None:
    jobs, _ = await opened(tmp_path)
    try:
        flags = jobs.watchdog.beat.flags
        assert bool(jobs.watchdog.lacking()) == (flags & (LOCKED | REALTIME) != LOCKED | REALTIME)
    finally:
        await jobs.close()


def test_the_watchdog_that_is_kept_was_built_of_the_source_beside_it() -> None:
    """`make watchdog` builds it and records both checksums."""
    folder = Path(lease_watchdog.__file__).parent
    lines = (folder / "watchdog.sha256").read_text().splitlines()
    assert {name: digest for digest, name in map(str.split, lines)} == {
        name: sha256((folder / name).read_bytes()).hexdigest()
        for name in ("watchdog.c", "watchdog.x86_64")
    }
