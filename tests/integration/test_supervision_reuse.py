"""One supervisor serves one attempt after the other: nothing of one reaches the next, and at any
doubt it serves none.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from supervision_world import WAIT_S, World, gone, kill, world_at
from test_supervision_agent import ROOT, killed_agent

from libs.common.errors import Refused
from services.node_agent.machine import processes
from services.node_agent.supervision import control_client
from services.node_agent.supervisor import pool, zygote

# What a job can see of what it was given. The shell's own number and the attempt's names differ
# from job to job.
GIVEN = """
env | grep -v -e ^MUSTER_ -e ^_= | sort; pwd; umask; ls /proc/self/fd; ulimit -a; nice
grep -e '^Sig[^Q]' -e ^Shd -e ^Cpus_allowed_list -e ^Uid -e ^Groups /proc/self/status
cat /proc/self/oom_score_adj /proc/self/cgroup; wc -c
"""
TO_ITSELF = (
    "cd /; umask 0; export LEAKED=1; ulimit -n 20; renice -n 5 $$; trap '' TERM INT; exec "
    "9>/dev/null; echo something; exit 3"
)
TO_ITS_PARENT = {
    "limits": "prlimit --pid $PPID --nofile=64:64",
    "niceness": "renice -n 7 -p $PPID",
    "processors": "taskset -p -c 0 $PPID",
    "score": "echo 500 > /proc/$PPID/oom_score_adj",
}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with world_at(tmp_path / "agent") as made:
        yield made


async def waiting(world: World, count: int) -> list[int]:
    """The children of the zygote, once these are as many as that and all of them live."""
    async with asyncio.timeout(WAIT_S):
        while True:
            found = [
                processes.process(pid) for pid in processes.children(world.supervisors._zygote.pid)
            ]
            living = [each.pid for each in found if each is not None and each.state not in "ZX"]
            if len(living) == len(found) == count:
                return living
            await asyncio.sleep(0.005)


def holders(path: str) -> list[int]:
    """Return the processes that have the file open, for example the zygote and supervisors of a
    log.
    """
    found = []
    for pid in processes.all_pids():
        with contextlib.suppress(OSError):
            if any(os.path.realpath(entry.path) == path for entry in os.scandir(f"/proc/{pid}/fd")):
                found.append(pid)
    return found


async def served_by(world: World, name: str, script: str = "true") -> int:
    """The pid of the supervisor of a job that has ended, once it waits again."""
    await world.run(name, script)
    pid = int((await world.told((name, 1), "started"))["pid"])
    await waits_again(world, pid)
    return pid


async def waits_again(world: World, pid: int) -> None:
    """It has let go of its job's files and sleeps; then the zygote, who has heard of it, sleeps.

    Or it has ended.
    """
    async with asyncio.timeout(WAIT_S):
        while not (settled(world, pid) and sleeps(pid) and sleeps(world.supervisors._zygote.pid)):
            await asyncio.sleep(0.01)


def settled(world: World, pid: int) -> bool:
    with contextlib.suppress(OSError):
        jobs = f"{world.state_dir}/jobs/"
        return not any(
            os.path.realpath(entry.path).startswith(jobs) for entry in os.scandir(f"/proc/{pid}/fd")
        )
    return True


def sleeps(pid: int) -> bool:
    found = processes.process(pid)
    return found is None or found.state in "SZX"


async def test_those_that_wait_end_with_the_zygote(world: World) -> None:
    served = await served_by(world, "before")
    kill(world.supervisors._zygote.pid)
    await gone(served)
    assert (await world.run("job", "exit 3"))["exit_code"] == 3


async def test_one_that_is_killed_while_it_waits_is_replaced_and_leaves_no_zombie(
    world: World,
) -> None:
    before = await waiting(world, pool.AHEAD)
    for pid in before:
        kill(pid)
    assert (await world.run("job", "exit 3"))["exit_code"] == 3
    async with asyncio.timeout(
        WAIT_S
    ):  # one of them may have taken the order before it died, and the next one another's place
        while set(before) & set(processes.children(world.supervisors._zygote.pid)):
            await asyncio.sleep(0.005)


async def test_an_order_is_taken_by_one_that_waited_and_another_takes_its_place(
    world: World,
) -> None:
    before = await waiting(world, pool.AHEAD)
    key = await world.shell("job", "sleep 600")
    assert (await world.told(key, "started"))["pid"] in before
    assert set(before) < set(await waiting(world, pool.AHEAD + 1))


async def test_one_supervisor_serves_one_attempt_after_the_other(world: World) -> None:
    assert len({await served_by(world, f"job-{n}", "exit 1") for n in range(4)}) == 1


async def test_attempts_at_the_same_time_have_supervisors_of_their_own(world: World) -> None:
    keys = [await world.shell(f"job-{n}", "sleep 600") for n in range(pool.AHEAD + 2)]
    assert len({(await world.told(key, "started"))["pid"] for key in keys}) == len(keys)


async def test_nothing_that_a_job_does_to_itself_reaches_the_next(world: World) -> None:
    fresh = await served_by(world, "fresh", GIVEN)
    assert await served_by(world, "between", TO_ITSELF) == fresh
    assert await served_by(world, "after", GIVEN) == fresh
    assert world.output(("after", 1)) == world.output(("fresh", 1)) != b""
    assert world.output(("after", 1), "stderr") == world.output(("fresh", 1), "stderr")


@pytest.mark.parametrize("what", TO_ITS_PARENT)
async def test_a_supervisor_that_a_job_has_changed_serves_no_other(world: World, what: str) -> None:
    await served_by(world, "fresh", GIVEN)
    key = await world.shell("job", f"{TO_ITS_PARENT[what]} || exit 77")
    if (await world.told(key, "exited"))["exit_code"] == 77:
        pytest.skip("a job may not do this here")
    await gone((await world.told(key, "started"))["pid"])
    await world.run("after", GIVEN)
    assert world.output(("after", 1)) == world.output(("fresh", 1))


async def test_one_that_was_killed_takes_only_its_own_job_along(world: World) -> None:
    served = await served_by(world, "before", "exit 4")
    doomed, other = (
        await world.shell("doomed", "sleep 600"),
        await world.shell("other", "sleep 0.5; exit 5"),
    )
    assert (await world.told(doomed, "started"))["pid"] == served
    await world.told(other, "started")
    kill(served)
    assert (await world.told(doomed, "exited"))["reason"] == "supervisor_lost"
    assert (await world.told(other, "exited"))["exit_code"] == 5
    assert (await world.told(("before", 1), "exited"))["exit_code"] == 4 and world.names(
        ("before", 1)
    ) == ["started", "exited"]


async def test_a_refused_attempt_is_a_doubt(world: World) -> None:
    served = await served_by(world, "before")
    assert (await world.run("job", "true", lease_path=str(world.state_dir / "nothing")))[
        "reason"
    ] == "lease_expired"
    await gone(served)


async def test_one_whose_agent_was_killed_leaves_nothing_behind(tmp_path: Path) -> None:
    """The supervisor of the job ends after it, those that wait at once."""
    job_pid, zygote_pid = killed_agent(tmp_path / "agent", "sleep 0.3")
    for pid in processes.children(zygote_pid):
        await gone(pid)
    await gone(job_pid)
    async with asyncio.timeout(WAIT_S):
        while holders(f"{tmp_path}/agent/zygote.err"):
            await asyncio.sleep(0.02)


async def test_an_order_unread_by_one_that_dies_is_given_to_another(world: World) -> None:
    stopped = await waiting(world, pool.AHEAD)
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    key = await world.shell("job", "echo ran; exit 3")
    for pid in stopped:
        kill(pid)
    assert (await world.told(key, "exited"))["exit_code"] == 3
    assert world.output(key) == b"ran\n" and world.names(key) == ["started", "exited"]


async def test_a_supervisor_refuses_what_is_meant_for_the_job_before(world: World) -> None:
    served = await served_by(world, "before")
    key = await world.shell("job", "sleep 600")
    assert (await world.told(key, "started"))["pid"] == served
    with pytest.raises(Refused, match=r"serves job\.1 now"):
        await control_client.ask(
            world.supervisors.job_dir(key), {"op": "stop", "job": "before.1"}, 5.0
        )
    await world.supervisors.stop(("before", 1))
    status = await world.supervisors.status(key)
    assert status is not None and status["state"] == "running"


async def test_those_above_the_bound_end(world: World) -> None:
    keys = [
        await world.shell(f"job-{n}", "while [ ! -e go ]; do sleep 0.05; done")
        for n in range(pool.WAITING_MAX + 4)
    ]
    for key in keys:
        await world.told(key, "started")
    (world.state_dir / "go").touch()
    for key in keys:
        await world.told(key, "exited")
    await waiting(world, pool.WAITING_MAX)


async def test_after_a_quiet_time_only_those_ahead_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "zygote.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from services.node_agent.supervisor import pool, zygote\n"
        "pool.QUIET_NS = 300_000_000\n"
        "zygote.main()\n"
    )
    monkeypatch.setattr(zygote, "__file__", str(script))
    async with world_at(tmp_path / "agent") as world:
        keys = [await world.shell(f"job-{n}", "sleep 0.1") for n in range(pool.AHEAD + 2)]
        for key in keys:
            await world.told(key, "exited")
        await waiting(world, pool.AHEAD)


async def test_end_of_the_lease_spares_a_supervisor_that_serves_another_job_now(
    world: World,
) -> None:
    """The first job's end is not known to the agent yet; the second one ignores the lease."""
    served = await served_by(world, "before")
    key = await world.shell("job", "sleep 0.5; exit 5", ignore_lease=True)
    assert (await world.told(key, "started"))["pid"] == served
    before = world.supervisors._jobs["before", 1]
    before.pidfd, before.exited = os.pidfd_open(served), False
    world.supervisors.end_leased()
    os.close(before.pidfd)
    before.pidfd, before.exited = -1, True
    assert (await world.told(key, "exited"))["exit_code"] == 5
