"""The agent asks for starts that were not reported, whatever fails when it asks."""

import asyncio
import contextlib
import errno
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from supervision_world import WAIT_S, World, kill, world_at

from services.node_agent.machine import processes
from services.node_agent.supervision import lost
from services.node_agent.supervision.agent_socket import AGENT_SOCKET
from services.node_agent.supervision.supervisor_client import MISSED_EVENTS_EVERY_S
from services.node_agent.supervisor import records
from tests.integration.test_siblings_without_descriptors import NONE, limited


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with world_at(tmp_path / "agent") as made:
        yield made


@contextlib.contextmanager
def supervisor_that_answers(job_dir: str, answer: str) -> Iterator[None]:
    """Let a process serve job attempt 1 whose every answer is this one."""
    name = f"muster-test-{os.getpid()}-{time.monotonic_ns()}"
    code = (
        "import socket; listener = socket.socket(socket.AF_UNIX); "
        f"listener.bind('\\0' + {name!r}); listener.listen(); print(flush=True)\n"
        "while True:\n    link, _ = listener.accept()\n    link.recv(1 << 16)\n"
        f"    link.sendall({answer.encode()!r})\n    link.close()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = processes.process(process.pid)
        assert found is not None
        records.place_marker(job_dir, {"rank": 0})
        who = lost._without_process("job", 1, 0)
        who.update(pid=process.pid, start_ticks=found.start_ticks, control=name)
        assert records.claim(job_dir, who)
        try:
            yield
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ('{"executed', "Unterminated string"),
        ('{"error": "it serves another job"}\n', "it serves another job"),
    ],
)
async def test_a_start_is_noticed_beside_a_supervisor_that_cannot_be_asked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, answer: str, why: str
) -> None:
    job_dir = tmp_path / "agent" / "jobs" / "job.1"
    with supervisor_that_answers(str(job_dir), answer):
        async with world_at(tmp_path / "agent") as world:
            (world.state_dir / AGENT_SOCKET).unlink()
            key = await world.shell("other", "sleep 600")
            await world.told(key, "started")
            assert why in caplog.text and "cannot tell whether job attempt 1" in caplog.text


async def test_a_start_is_noticed_once_the_agent_has_descriptors_again(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    (world.state_dir / AGENT_SOCKET).unlink()
    key = await world.shell("job", "sleep 600")
    with limited(NONE):
        async with asyncio.timeout(WAIT_S):
            while "cannot tell whether job attempt 1 has started" not in caplog.text:
                await asyncio.sleep(0.05)
        assert "started" not in world.names(key)
    await world.told(key, "started")


@pytest.mark.parametrize("is_killed", [False, True])
async def test_end_is_told_once_the_agent_has_descriptors_again(
    world: World, caplog: pytest.LogCaptureFixture, is_killed: bool
) -> None:
    key = await world.shell("job", "while [ ! -e go ]; do sleep 0.02; done; exit 3")
    await world.told(key, "started")
    pid = world.supervisors._jobs[key].supervisor_pid
    with limited(NONE):
        if is_killed:
            kill(pid)
        else:
            (world.state_dir / "go").mkdir()
        async with asyncio.timeout(WAIT_S):
            while "job attempt 1: [Errno 24] Too many open files" not in caplog.text:
                await asyncio.sleep(0.05)
        await asyncio.sleep(MISSED_EVENTS_EVERY_S)
        assert world.names(key) == ["started"]
    ended = await world.told(key, "exited")
    assert (ended["exit_code"], ended["reason"]) == (
        (None, "supervisor_lost") if is_killed else (3, "exited")
    )


async def test_supervisor_that_cannot_be_watched_at_first_runs_its_job(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(world.supervisors._processes, "watch", fails)
        key = await world.shell("job", "exec sleep 600")
        await world.told(key, "started")
    async with asyncio.timeout(WAIT_S):
        while (job := world.supervisors._jobs[key]).pidfd < 0:
            await asyncio.sleep(0.05)
    kill(job.supervisor_pid)
    assert (await world.told(key, "exited"))["reason"] == "supervisor_lost"


async def test_jobs_start_again_once_the_next_zygote_can_be_started(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    with limited(NONE):
        kill(world.supervisors._zygote.pid)
        async with asyncio.timeout(WAIT_S):
            while caplog.text.count("cannot start the zygote") < 2:
                await asyncio.sleep(0.01)
    assert (await world.run("job", "exit 3"))["exit_code"] == 3


async def test_start_fails_if_no_zygote_is_started_any_more(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    link = world.supervisors._zygote

    async def fails() -> None:
        raise AssertionError("a bug")

    monkeypatch.setattr(link, "_spawn", fails)
    asking = asyncio.create_task(link.ask(b"\0\0\0\1{"))
    kill(link.pid)
    with pytest.raises(AssertionError, match="a bug"):
        await asyncio.wait_for(asking, WAIT_S)
    with pytest.raises(AssertionError, match="a bug"):
        await world.shell("job", "true")
    assert "no zygote is started any more" in caplog.text
