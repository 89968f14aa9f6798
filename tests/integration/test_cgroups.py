"""Jobs in real control groups: limits that hold, ends that are named, and groups that are clean and
gone.

Skips where none can be made.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from supervision_world import WAIT_S, World, gone, kill, python, world_at
from test_supervision_reuse import waits_again

from services.node_agent.machine import cgroups, processes
from services.node_agent.machine.cgroup_files import CPU, CPUS, MEMORY, PROCESSES, UNIFIED
from services.node_agent.machine.cgroups import Home
from services.node_agent.supervisor import records
from tests import cgroups as given

MIB = 1 << 20
FILL = "import time\nkept = []\nwhile True: kept.append(b'x' * (1 << 20)); time.sleep(0.001)"


@pytest.fixture
def home() -> Iterator[Home]:
    with given.home() as made:
        yield made


@pytest.fixture
async def world(tmp_path: Path, home: Home) -> AsyncIterator[World]:
    async with world_at(tmp_path / "agent", home.dirs) as made:
        yield made


def of(world: World, job: str, controller: str, home: Home, file: str) -> str:
    """Return the content of a file of a job's control group."""
    identity = records.read_identity(world.supervisors.job_dir((job, 1)))
    assert identity is not None
    name = cgroups.name_of(identity["pid"], identity["start_ticks"])
    return Path(home.dirs[controller], name, file).read_text().strip()


def is_v2(home: Home, controller: str) -> bool:
    return home.dirs[controller] == home.dirs.get(UNIFIED)


async def test_all_that_a_job_begins_is_in_one_group_whatever_session_it_has(
    world: World, home: Home
) -> None:
    key = await world.shell("a", "setsid sh -c 'sleep 60 & echo ready; sleep 60' & wait")
    await world.printed(key, b"ready")
    identity = records.read_identity(world.supervisors.job_dir(key))
    assert identity is not None
    async with asyncio.timeout(WAIT_S):
        while (
            len(found := cgroups.members(identity["cgroup"])) < 5
        ):  # its supervisor, two shells, two sleeps
            await asyncio.sleep(0.01)
    assert {identity["pid"], identity["job_pid"]} < set(found)
    await world.supervisors.kill(key)
    await world.told(key, "exited")


async def test_a_job_over_its_memory_is_ended_and_the_end_says_so(world: World, home: Home) -> None:
    given.needs(home, MEMORY)
    key = await world.launch("greedy", *python(FILL), limits={"memory_bytes": 64 * MIB})
    record = await world.told(key, "exited")
    assert (record["reason"], record["signal"]) == ("out_of_memory", 9)
    assert record["detail"].startswith(
        "out of host memory: the kernel ended 1 of its processes at the job's limit of 64 MiB"
    )
    after = await world.run("next", "exit 3")
    assert (after["reason"], after["exit_code"], "memory" in after["detail"]) == (
        "exited",
        3,
        False,
    )


async def test_out_of_memory_ends_the_job_s_small_processes_and_not_their_supervisor(
    world: World, home: Home
) -> None:
    given.needs(home, MEMORY)
    small = "import time\nkept = b'x' * (6 << 20)\ntime.sleep(60)"
    script = (
        f"import subprocess, sys\nmany = [subprocess.Popen([sys.executable, '-ISc', {small!r}]) "
        "for _ in range(20)]\nmany[0].wait()"
    )
    key = await world.launch(
        "many",
        *python(f"{script}\nfor each in many: each.wait()\nsys.exit(1)"),
        limits={"memory_bytes": 64 * MIB},
    )
    async with asyncio.timeout(WAIT_S):
        while not (await world.supervisors.status(key) is None or _kills(home, world, "many")):
            await asyncio.sleep(0.05)
    await world.supervisors.kill(key)
    assert (await world.told(key, "exited"))["reason"] in ("stopped", "out_of_memory")


def _kills(home: Home, world: World, job: str) -> bool:
    return "oom_kill 0" not in of(
        world=world,
        job=job,
        controller=MEMORY,
        home=home,
        file="memory.events" if is_v2(home, MEMORY) else "memory.oom_control",
    )


async def test_a_job_that_was_not_ended_for_memory_is_not_said_to_be(
    world: World, home: Home
) -> None:
    given.needs(home, MEMORY)
    record = await world.run("modest", "kill -9 $$", limits={"memory_bytes": 64 * MIB})
    assert (record["reason"], "memory" in record["detail"]) == ("signalled", False)


async def test_processors_are_shared_out_as_asked_for_and_the_next_job_is_free_again(
    world: World, home: Home
) -> None:
    given.needs(home, CPU)
    file, asked, free = (
        ("cpu.max", "50000 100000", "max 100000")
        if is_v2(home, CPU)
        else ("cpu.cfs_quota_us", "50000", "-1")
    )
    for name, limits, expected in (("half", {"cpus_milli": 500}, asked), ("whole", {}, free)):
        key = await world.shell(name, "echo ready; sleep 60", limits=limits)
        await world.printed(key, b"ready")
        assert of(world=world, job=name, controller=CPU, home=home, file=file) == expected
        await world.supervisors.kill(key)
        await world.told(key, "exited")


async def test_a_job_is_bound_to_the_processors_beside_its_devices(
    world: World, home: Home
) -> None:
    given.needs(home, CPUS)
    first = min(os.sched_getaffinity(0))
    await world.run(
        "bound",
        "grep Cpus_allowed_list /proc/self/status",
        limits={"cpus": str(first), "memory_nodes": "0"},
    )
    assert world.output(("bound", 1)).split() == [b"Cpus_allowed_list:", str(first).encode()]
    await world.run("free", "grep -c processor /proc/cpuinfo; nproc")
    assert world.output(("free", 1)).split()[1] == str(len(os.sched_getaffinity(0))).encode()


async def test_a_limit_that_the_kernel_refuses_ends_the_start_with_the_reason(
    world: World, home: Home
) -> None:
    given.needs(home, CPUS)
    record = await world.run("nowhere", "echo began", limits={"cpus": "4095"})
    assert (record["executed"], record["reason"]) == (False, "exec_failed")
    assert "cpuset.cpus" in record["detail"]


async def test_number_of_processes_of_a_job_is_bounded(world: World, home: Home) -> None:
    given.needs(home, PROCESSES)
    key = await world.shell("few", "echo ready; sleep 60")
    await world.printed(key, b"ready")
    assert (
        0
        < int(of(world=world, job="few", controller=PROCESSES, home=home, file="pids.max"))
        < int(processes.read("/proc/sys/kernel/pid_max", 20))
    )
    await world.supervisors.kill(key)
    await world.told(key, "exited")


async def test_a_group_serves_the_next_job_but_not_with_what_the_last_one_left_in_it(
    world: World, home: Home
) -> None:
    given.needs(home, MEMORY)
    path = f"/dev/shm/muster-test-{os.getpid()}"
    pids = []
    for name, script in (("a", "true"), ("b", f"head -c 100M /dev/zero > {path}"), ("c", "true")):
        await world.run(name, script)
        pids.append(int((await world.told((name, 1), "started"))["pid"]))
        await waits_again(world, pids[-1])
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    assert pids[0] == pids[1] != pids[2]


async def test_processes_of_a_killed_supervisor_are_found_by_their_cgroup(
    world: World, home: Home
) -> None:
    key = await world.shell("a", "env -i setsid sh -c 'echo $$; exec sleep 60' & wait")
    stray = int(await world.printed(key, b"\n"))
    identity = records.read_identity(world.supervisors.job_dir(key))
    assert identity is not None
    kill(world.supervisors._zygote.pid)  # or it would end the stray first
    kill(identity["pid"])
    record = await world.told(key, "exited")
    await gone(stray)
    assert (record["reason"], record["clean"]) == ("supervisor_lost", True)


async def test_empty_groups_are_removed_with_their_supervisors_and_with_the_agent(
    tmp_path: Path, home: Home
) -> None:
    async with world_at(tmp_path / "agent", home.dirs) as world:
        await world.run("a", "true")
        pid = int((await world.told(("a", 1), "started"))["pid"])
        path = (records.read_identity(world.supervisors.job_dir(("a", 1))) or {"cgroup": ""})[
            "cgroup"
        ]
        assert cgroups.members(path) == [pid]
        kill(pid)
        async with asyncio.timeout(WAIT_S):
            while os.access(path, os.F_OK):
                await asyncio.sleep(0.01)
    assert [
        entry.name
        for path in set(home.dirs.values())
        for entry in os.scandir(path)
        if entry.is_dir()
    ] == []


async def test_the_cgroup_of_a_running_job_survives_its_agent_and_empty_ones_are_removed(
    tmp_path: Path, home: Home
) -> None:
    async with world_at(tmp_path / "agent", home.dirs) as world:
        key = await world.shell("a", "echo ready; exec sleep 60")
        await world.printed(key, b"ready")
        identity = records.read_identity(world.supervisors.job_dir(key))
        assert identity is not None
        await world.supervisors.close()
        assert identity["job_pid"] in cgroups.members(identity["cgroup"])
        some = next(iter(home.dirs.values()))
        os.mkdir(f"{some}/empty")
        assert cgroups.prepare(*some.split("/")[-2:]).dirs == home.dirs
        assert not os.access(f"{some}/empty", os.F_OK) and identity["job_pid"] in cgroups.members(
            identity["cgroup"]
        )
        await world.supervisors.start()
        await world.supervisors.kill(key)
        await world.told(key, "exited")


def test_missing_control_groups_are_reported_without_an_error(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text("22 27 0:21 / /proc rw - proc proc rw\n")
    assert cgroups.prepare("x", "y", str(mounts)).dirs == {}
    assert (
        cgroups.prepare("x", "y", str(mounts)).lost[MEMORY]
        == "memory: no control group of this kind is mounted"
    )
    assert cgroups.prepare("", "y").lost[MEMORY] == "memory: MUSTER_CGROUP is empty"


def test_a_hierarchy_that_cannot_be_written_is_lost_by_name_and_the_others_are_not(
    tmp_path: Path,
) -> None:
    (tmp_path / "pids/x/y").mkdir(parents=True)
    (tmp_path / "pids/x/y/pids.max").touch()
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "cgroup.controllers").write_text("memory cpu\n")
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        f"1 2 0:3 / {tmp_path}/pids rw - cgroup cgroup rw,pids\n2 2 0:3 / {tmp_path}/all rw "
        "- cgroup2 cgroup2 rw\n"
        f"3 2 0:3 / {tmp_path}/none rw - cgroup cgroup rw,cpuset\n"
    )
    found = cgroups.prepare("x", "y", str(mounts))
    assert found.dirs[PROCESSES] == f"{tmp_path}/pids/x/y"
    (tmp_path / "pids/x/y/pids.max").unlink()
    assert (
        cgroups.prepare("x", "y", str(mounts)).lost[PROCESSES]
        == f"{tmp_path}/pids/x/y/pids.max: No such file or directory"
    )
    assert found.lost[CPUS] == f"{tmp_path}/none/x: No such file or directory"
    assert "cgroup.subtree_control" in found.lost[MEMORY]


def test_under_v2_the_same_bounds_are_written_in_its_words(tmp_path: Path) -> None:
    """By plain files: where the kernel has given its controllers to v1 there is no other v2."""
    bounds = ("memory.max", "memory.swap.max", "cpu.max", "cpuset.cpus", "cpuset.mems", "pids.max")
    group = tmp_path / "home/group"
    group.mkdir(parents=True)
    for path in (*(group / name for name in bounds), group / "cgroup.controllers"):
        path.touch()
    for name, text in (("cpus", "0-7"), ("mems", "0-1")):
        (group.parent / f"cpuset.{name}.effective").write_text(f"{text}\n")
    made = cgroups.Group(dict.fromkeys((MEMORY, CPU, CPUS, PROCESSES), str(group)))

    def written(limits: cgroups.Limits) -> list[str]:
        for name in bounds:
            (group / name).write_text("")
        made.limit(limits)
        return [(group / name).read_text() for name in bounds[:-1]]

    asked = cgroups.Limits(cpus_milli=1_500, memory_bytes=64 * MIB, cpus="0-3", memory_nodes="0")
    assert written(asked) == [str(64 * MIB), "0", "150000 100000", "0-3", "0"]
    assert written({}) == ["max", "max", "max 100000", "0-7", "0-1"]
    assert int((group / "pids.max").read_text()) > 0
