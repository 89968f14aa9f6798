"""Jobs that mean harm, under one real agent: each is contained, its end is named, and the node runs
the next job as if nothing had been.

/dev/zero and /dev/full stand for the node's two GPUs; every job here is given the first.
"""

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from agent_world import World, world_at
from supervision_world import gone, kill

from libs.common import facts as f
from libs.common.model import GpuId
from services.node_agent.drivers import DeviceNodes
from services.node_agent.machine.cgroup_files import DEVICES, MEMORY
from services.node_agent.machine.cgroups import Home
from tests import cgroups as given

MIB = 1 << 20
MINE = GpuId("GPU-n-0")
SOON_NS = 1_000_000_000
# Twice forked, of a session and an environment of its own, deaf to TERM and HUP, with no descriptor
# of the job's.
DAEMON = (
    '(env -i setsid sh -c \'trap "" TERM HUP; exec </dev/null >pid 2>&1; echo $$; while :; do '
    "sleep 1; done' &)"
)
FILL = "import time\nkept = []\nwhile True: kept.append(b'x' * (1 << 20)); time.sleep(0.001)"
# Takes a descriptor from each client that connects, prints a line, and keeps it.
KEEPER = """
import socket, sys, time
listener = socket.socket(socket.AF_UNIX); listener.bind(sys.argv[1]); listener.listen()
kept = socket.recv_fds(listener.accept()[0], 10, 1)
time.sleep(300)
"""
HAND_OVER = """
import os, socket
talk = socket.socket(socket.AF_UNIX); talk.connect("keeper")
socket.send_fds(talk, [b"device"], [os.open("/dev/zero", os.O_RDONLY)])
"""


def nodes() -> DeviceNodes:
    numbers = {"GPU-n-0": os.stat("/dev/zero").st_rdev, "GPU-n-1": os.stat("/dev/full").st_rdev}
    return {
        GpuId(uuid): ((os.major(number), os.minor(number)),) for uuid, number in numbers.items()
    }


@pytest.fixture
def home() -> Iterator[Home]:
    with given.home() as made:
        yield made


@pytest.fixture
async def world(tmp_path: Path, home: Home) -> AsyncIterator[World]:
    async with world_at(tmp_path, home.dirs) as made:
        made.driver.nodes = nodes()
        made.agent.state.release_ns = SOON_NS
        yield made


def keeper(path: str) -> int:
    """No child of this process, and of no terminal."""
    line = [
        "sh",
        "-c",
        'setsid "$@" > /dev/null 2>&1 & echo $!',
        "sh",
        sys.executable,
        "-ISc",
        KEEPER,
        path,
    ]
    return int(subprocess.run(line, stdout=subprocess.PIPE, check=True).stdout)


async def is_usable(world: World) -> None:
    """The next job begins, says what it has to say, and leaves its device clean."""
    await world.start("next", "echo fine")
    finished, released = (
        await world.said(f.JobFinished, "next"),
        await world.said(f.JobReleased, "next"),
    )
    assert (finished.exit_code, released.checks["processes"], released.checks["holders"]) == (
        0,
        "gone",
        "none",
    )
    assert (await world.output("next")).data == b"fine\n"


async def test_hostile_job_cannot_open_a_device_of_another_job(world: World, home: Home) -> None:
    given.needs(home, DEVICES)
    await world.start("j", "head -c1 /dev/zero | wc -c; head -c1 /dev/full")
    assert (await world.said(f.JobFinished, "j")).exit_code == 1
    assert (await world.output("j")).data == b"1\n"
    assert b"Operation not permitted" in (await world.output("j", stream="stderr")).data
    await is_usable(world)


async def test_processes_of_a_job_that_daemonises_are_ended(world: World) -> None:
    await world.start("j", f"{DAEMON}; until [ -s pid ]; do sleep 0.01; done")
    finished, released = await world.said(f.JobFinished, "j"), await world.said(f.JobReleased, "j")
    await gone(int((world.state_dir / "pid").read_text()))
    assert (released.checks["processes"], world.facts(f.GpuFaulted)) == ("gone", [])
    assert "processes behind, which were ended" in finished.detail
    await is_usable(world)


async def test_daemon_that_holds_the_job_s_device_is_ended(world: World) -> None:
    held = DAEMON.replace("</dev/null", "</dev/zero")
    await world.start("j", f"{held}; until [ -s pid ]; do sleep 0.01; done")
    finished, released = await world.said(f.JobFinished, "j"), await world.said(f.JobReleased, "j")
    await gone(int((world.state_dir / "pid").read_text()))
    assert (
        released.checks["processes"],
        released.checks["holders"],
        world.facts(f.GpuFaulted),
    ) == ("gone", "none", [])
    assert "processes behind, which were ended" in finished.detail
    await is_usable(world)


async def test_job_that_ignores_sigterm_is_killed(world: World) -> None:
    await world.start("j", "trap '' TERM; echo ready; while :; do sleep 0.05; done")
    await world.said(f.JobStarted, "j")
    await world.scheduler.send(world.stop_order("j", grace_ms=200))
    finished = await world.said(f.JobFinished, "j")
    assert (finished.signal, finished.reason) == (9, "stopped")
    assert finished.detail == "the main process was ended by signal 9 after a stop was requested"
    await is_usable(world)


async def test_many_that_ignore_sigterm_are_killed_with_their_first(world: World) -> None:
    await world.start(
        "j",
        (
            "trap '' TERM; for each in $(seq 60); do sleep 60 & done; touch ready; while :; do "
            "sleep 1; done"
        ),
    )
    await world.until(lambda: (world.state_dir / "ready").exists())
    await world.scheduler.send(world.stop_order("j", grace_ms=200))
    finished = await world.said(f.JobFinished, "j")
    assert finished.detail == "the main process was ended by signal 9 after a stop was requested"
    await is_usable(world)


@pytest.mark.parametrize(
    ("killed", "enforced", "left"), [(True, True, 0), (True, False, 1), (False, True, 1)]
)
def test_processes_killed_with_the_main_process_are_not_reported_as_left(
    killed: bool, enforced: bool, left: int
) -> None:
    code = [
        "import signal, subprocess, sys",
        f"sys.path.insert(0, {str(Path(__file__).parents[2])!r})",
        "from services.node_agent.supervisor.ending import Ending",
        "subprocess.Popen(['sleep', '60'])",
        "ending = Ending(1 << 22, None)",
        "ending.stop(signal.SIGKILL, 0, 1)",
        "ending.enforce(1)" if enforced else "",
        f"ending.main_ended(2, {killed})",
        "print(ending.left_behind)",
        "ending.enforce(2)",
    ]
    assert (
        subprocess.run(
            [sys.executable, "-c", "\n".join(code)], stdout=subprocess.PIPE, check=True
        ).stdout
        == b"%d\n" % left
    )


async def test_device_that_another_process_keeps_open_is_quarantined_until_it_is_closed(
    world: World,
) -> None:
    await world.start(
        "j", f"until [ -S keeper ]; do sleep 0.02; done; {sys.executable} -ISc '{HAND_OVER}'"
    )
    await world.said(f.JobStarted, "j")
    pid = keeper(str(world.state_dir / "keeper"))
    try:
        released = await world.said(f.JobReleased, "j")
    finally:
        kill(pid)
    fault = world.facts(f.GpuFaulted)[0]
    assert (fault.uuid, fault.reason) == (MINE, "quarantined")
    assert fault.detail.startswith(f"open in process {pid} python")
    assert released.checks["holders"].startswith(f"{pid} python")
    await gone(pid)
    await world.until(lambda: [fact.uuid for fact in world.facts(f.GpuRecovered)] == [MINE])
    await is_usable(world)


async def test_job_that_exceeds_its_host_memory_is_ended_and_told_so(
    world: World, home: Home
) -> None:
    given.needs(home, MEMORY)
    await world.start("j", f'exec {sys.executable} -ISc "{FILL}"', memory_bytes=64 * MIB)
    finished = await world.said(f.JobFinished, "j")
    assert (finished.signal, finished.reason) == (9, "out_of_memory")
    assert "out of host memory" in finished.detail and "64 MiB" in finished.detail
    await is_usable(world)


async def test_output_that_would_fill_the_disk_is_bounded(world: World) -> None:
    await world.start(
        "j", "head -c 40M /dev/urandom; head -c 40M /dev/urandom >&2", output_limit_bytes=MIB
    )
    finished = await world.said(f.JobFinished, "j")
    kept = sum(entry.stat().st_size for entry in os.scandir(world.state_dir / "jobs/j.1"))
    assert (finished.exit_code, finished.stdout_bytes, finished.stderr_bytes) == (
        0,
        40 * MIB,
        40 * MIB,
    )
    assert kept < 3 * MIB and (await world.output("j")).offset >= 38 * MIB
    await is_usable(world)


async def test_million_lines_of_output_leave_no_work_behind(world: World) -> None:
    before = len(world.agent.tasks.work)
    await world.start("j", "seq 1000000")
    finished = await world.said(f.JobFinished, "j")
    assert (finished.exit_code, finished.stdout_bytes) == (0, 6_888_896)
    assert (await world.output("j", 6_888_896 - 8)).data == b"1000000\n"
    assert len(world.agent.tasks.work) <= before + 2
    await is_usable(world)


async def test_a_root_job_that_changes_its_cgroup_is_ended_with_its_children(
    world: World, home: Home
) -> None:
    top = os.path.dirname(os.path.dirname(home.dirs[next(iter(home.dirs))]))
    await world.start(
        "j", f"echo 0 > {top}/cgroup.procs && {DAEMON}; until [ -s pid ]; do sleep 0.01; done"
    )
    released = await world.said(f.JobReleased, "j")
    await gone(int((world.state_dir / "pid").read_text()))
    assert released.checks["processes"] == "gone"
    await is_usable(world)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a job another user")
async def test_job_s_user_cannot_change_its_control_group(tmp_path: Path, home: Home) -> None:
    for folder in (tmp_path, *tmp_path.parents[:-2]):
        folder.chmod(folder.stat().st_mode | 0o011)
    async with world_at(tmp_path, home.dirs, {"*": "nobody"}) as world:
        tries = "; ".join(
            f"echo $$ > {path}"
            for path in sorted(
                {os.path.dirname(path) + "/cgroup.procs" for path in home.dirs.values()}
            )
        )
        await world.start("j", f"cat /proc/self/cgroup; {tries}; cat /proc/self/cgroup")
        finished = await world.said(f.JobFinished, "j")
        lines = (await world.output("j")).data.splitlines()
        assert finished.exit_code == 0 and lines[: len(lines) // 2] == lines[len(lines) // 2 :]
        assert (await world.output("j", stream="stderr")).data.count(b"ermission denied") == len(
            tries.split(";")
        )
        world.driver.nodes = nodes()
        await is_usable(world)
