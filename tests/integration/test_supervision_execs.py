"""Processes beside a running job: its surroundings, their ends, and that none keeps a job from
ending or outlives it.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from libs.common.errors import Refused
from services.node_agent.machine import processes
from services.node_agent.supervision.control_client import Exec, begin_exec
from services.node_agent.supervision.supervised_job import Key
from tests.integration.supervision_world import WAIT_S, World, gone, kill, world_at

STUBBORN = "trap '' HUP TERM INT; echo $$; while :; do sleep 0.1; done"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with world_at(tmp_path / "state") as made:
        yield made


class Beside:
    """An exec and the reading end of what it writes."""

    def __init__(self, process: Exec, descriptor: int) -> None:
        self.process = process
        self.descriptor = descriptor

    async def line(self) -> str:
        async with asyncio.timeout(WAIT_S):
            found = b""
            while not found.endswith(b"\n"):
                found += await asyncio.to_thread(os.read, self.descriptor, 1)
        return found.decode().strip()

    async def wait(self) -> tuple[int, str]:
        async with asyncio.timeout(WAIT_S):
            return await self.process.wait()


async def beside(world: World, key: Key, *argv: str, **more: Any) -> Beside:
    reader, writer = os.pipe()
    null = os.open(os.devnull, os.O_RDONLY)
    try:
        made = await begin_exec(
            world.supervisors.job_dir(key), {"argv": argv, **more}, (null, writer, writer)
        )
    finally:
        os.close(writer)
        os.close(null)
    return Beside(made, reader)


async def shell(world: World, key: Key, script: str, **more: Any) -> Beside:
    return await beside(world, key, "/bin/sh", "-c", script, **more)


async def running(
    world: World, job_id: str = "j", script: str = "echo up; exec sleep 60", **fields: Any
) -> Key:
    key = await world.shell(job_id, script, **fields)
    await world.printed(key, b"up")
    return key


async def test_it_has_the_job_s_environment_directory_and_parent(world: World) -> None:
    key = await running(world, env={"CUDA_VISIBLE_DEVICES": "GPU-7"})
    job = await world.told(key, "started")
    exec_ = await shell(
        world,
        key,
        "echo $CUDA_VISIBLE_DEVICES $MUSTER_JOB_ID $PWD $PPID $TERM",
        env={"TERM": "vt100"},
    )
    assert (await exec_.line()).split() == [
        "GPU-7",
        "j",
        str(world.state_dir),
        str(job["pid"]),
        "vt100",
    ]
    assert await exec_.wait() == (0, "")


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (("/bin/sh", "-c", "exit 7"), 7, ""),
        (("/bin/sh", "-c", "kill -9 $$"), 137, ""),
        (("no-such-command",), 127, "was not found"),
        (("/etc/passwd",), 126, "cannot be executed"),
    ],
)
async def test_exit_code_of_an_exec_is_returned(
    world: World, argv: tuple[str, ...], code: int, said: str
) -> None:
    key = await running(world)
    found, detail = await (await beside(world, key, *argv)).wait()
    assert found == code and said in detail and bool(said) == bool(detail)


async def test_a_signal_reaches_its_whole_group_and_not_the_job(world: World) -> None:
    key = await running(world)
    exec_ = await shell(world, key, "sleep 60 & echo $!; wait")
    child = int(await exec_.line())
    await exec_.process.send_signal(signal.SIGTERM)
    assert await exec_.wait() == (143, "")
    await gone(child)
    await world.told(key, "started")
    assert world.names(key) == ["started"]


async def test_no_more_than_the_limit_run_beside_one_job(world: World) -> None:
    key = await running(world)
    first = await shell(world, key, "echo in; sleep 60", limit=2)
    second = await shell(world, key, "echo in; sleep 60", limit=2)
    with pytest.raises(Refused, match="2 are running in this job already"):
        await shell(world, key, "true", limit=2)
    await second.line()
    await second.process.send_signal(signal.SIGKILL)
    await second.wait()
    assert await (await shell(world, key, "true", limit=2)).wait() == (0, "")
    assert await first.line() == "in"


async def test_it_ends_with_the_job_s_own_process_and_does_not_hold_it_up(world: World) -> None:
    key = await running(world, script="echo up; sleep 1; exit 3")
    exec_ = await shell(world, key, STUBBORN)
    pid = int(await exec_.line())
    record = await world.told(key, "exited")
    assert (record["exit_code"], record["clean"]) == (3, True)
    assert record["duration_ns"] < 5e9
    assert (await exec_.wait())[0] == 137
    await gone(pid)


async def test_a_stop_of_the_job_ends_it_and_no_other_is_begun_meanwhile(world: World) -> None:
    key = await running(world, script="trap '' TERM; echo up; while :; do sleep 0.1; done")
    exec_ = await shell(world, key, "echo in; exec sleep 60")
    await exec_.line()
    await world.supervisors.stop(key, signal.SIGTERM, 1.0)
    assert await exec_.wait() == (143, "it was ended with its job")
    with pytest.raises(Refused, match="the job is ending"):
        await shell(world, key, "true")
    await world.told(key, "exited")


async def test_it_is_gone_when_the_lease_is(world: World, tmp_path: Path) -> None:
    async with world_at(tmp_path / "short") as short:
        short.lease.replace(0)
        deadline_ns = short.extend(4.0)
        key = await running(short)
        exec_ = await shell(short, key, STUBBORN)
        pid = int(await exec_.line())
        assert (await short.told(key, "exited"))["reason"] == "lease_expired"
        assert processes.boottime_ns() < deadline_ns and not processes.is_living(pid, _ticks(pid))


def _ticks(pid: int) -> int:
    found = processes.process(pid)
    return found.start_ticks if found is not None else 0


async def test_it_dies_with_the_supervisor(world: World) -> None:
    key = await running(world)
    exec_ = await shell(world, key, STUBBORN)
    pid = int(await exec_.line())
    kill((await world.told(key, "started"))["pid"])
    await gone(pid)
    assert (await world.told(key, "exited"))["clean"] is True


async def test_disconnect_ends_the_command_by_hup_and_then_by_kill(world: World) -> None:
    key = await running(world)
    polite, stubborn = (
        await shell(world, key, "echo $$; exec sleep 60"),
        await shell(world, key, STUBBORN),
    )
    pids = [int(await polite.line()), int(await stubborn.line())]
    began_ns = processes.boottime_ns()
    polite.process.close()
    stubborn.process.close()
    await gone(pids[0])
    assert processes.boottime_ns() - began_ns < 1.5e9
    await gone(pids[1])
    assert 1.9e9 < processes.boottime_ns() - began_ns < 10e9
    assert world.names(key) == ["started"]


async def test_a_terminal_is_its_own_and_hangs_up(world: World) -> None:
    key = await running(world)
    master, slave = os.openpty()
    try:
        process = await begin_exec(
            world.supervisors.job_dir(key), {"argv": ["/bin/sh", "-c", "tty; exec cat"]}, (slave,)
        )
    finally:
        os.close(slave)
    exec_ = Beside(process, master)
    assert (await exec_.line()).startswith("/dev/pts/")
    os.write(master, b"\x03")
    assert await exec_.wait() == (130, "")
    os.close(master)


async def test_a_supervisor_serves_on_after_execs(world: World) -> None:
    """Nothing of them stays open in it."""
    key = await running(world, "a", "echo up; sleep 1")
    exec_ = await shell(world, key, "echo in; sleep 60")
    await exec_.line()
    with pytest.raises(Refused):
        await begin_exec(world.supervisors.job_dir(key), {"argv": ["true"]}, ())
    first = await world.told(key, "exited")
    await asyncio.sleep(0.2)
    second = await world.told(await running(world, "b", "echo up"), "exited")
    identities = [
        world_record["pid"]
        for of, name, world_record in world.events
        if name == "started" and of[0] in "ab"
    ]
    assert len(set(identities)) == 1 and first["clean"] and second["clean"]


async def test_none_is_begun_beside_a_job_that_has_ended(world: World) -> None:
    key = await world.shell("j", "true")
    await world.told(key, "exited")
    with pytest.raises(Refused), contextlib.suppress(TimeoutError):
        await shell(world, key, "true")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a job another user")
async def test_it_is_the_job_s_user_and_no_more(world: World) -> None:
    key = await running(world, account=[65534, 65533, 7], workdir="/")
    told = await shell(
        world,
        key,
        "echo $(id -u; id -g; id -G; grep NoNewPrivs /proc/self/status) > /dev/stdout; id -u",
    )
    assert (await told.line()).split() == ["65534", "65533", "65533", "7", "NoNewPrivs:", "1"]
    assert await told.wait() == (0, "")
    assert os.stat(os.devnull).st_uid == 0
