"""The agent's side: kills of every process at any moment, restarts, and at most one start of each
attempt.
"""

import asyncio
import errno
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from supervision_world import PATIENT, WAIT_S, World, gone, kill, world_at

from libs.common.errors import Refused
from libs.common.process.open_files import first_limit, raise_limit
from services.node_agent.machine import processes
from services.node_agent.supervision import agent_socket, control_client, lost, output
from services.node_agent.supervision.agent_socket import AGENT_SOCKET
from services.node_agent.supervision.launch_request import AlreadyStarted
from services.node_agent.supervisor import order, records, telling

ROOT = Path(__file__).parents[2]
AGENT = """
import asyncio, os, sys
sys.path[:0] = [{root!r}, {here!r}]
from pathlib import Path
from supervision_world import World
async def main():
    world = World(Path({state!r}))
    await world.supervisors.start()
    key = await world.shell("job", {script!r})
    print((await world.told(key, "started"))["job_pid"], world.supervisors._zygote.pid, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with world_at(tmp_path / "agent") as made:
        yield made


def killed_agent(state_dir: Path, script: str) -> tuple[int, int]:
    """Another process is the agent, starts one job, and is killed.

    The pids of the job and of the zygote.
    """
    code = AGENT.format(
        root=str(ROOT), here=str(Path(__file__).parent), state=str(state_dir), script=script
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        job_pid, zygote_pid = map(int, agent.stdout.readline().split())
        agent.kill()
    return job_pid, zygote_pid


@pytest.mark.parametrize("folder", ["near", "far" * 40])
def test_supervisor_report_reaches_the_agent_wherever_its_directory_is(
    tmp_path: Path, folder: str
) -> None:
    state_dir = tmp_path / folder
    state_dir.mkdir()
    message = {"event": "started", "job_id": "j", "attempt": 1}
    assert not telling.tell(f"{state_dir}/{AGENT_SOCKET}", message)
    with agent_socket.bind(str(state_dir)) as events:
        assert telling.tell(f"{state_dir}/{AGENT_SOCKET}", message)
        told = agent_socket._datagrams.decode(events.recv(agent_socket.DATAGRAM_BYTES))
    assert (told.event, told.job_id, told.attempt) == ("started", "j", 1)
    assert not telling.tell(f"{state_dir}/{AGENT_SOCKET}", message)


def test_a_job_that_ends_soon_is_told_once_and_a_longer_one_twice(tmp_path: Path) -> None:
    order: Any = {"agent_socket": f"{tmp_path}/{AGENT_SOCKET}", "job_id": "j", "attempt": 1}
    after_ns = telling.START_ALONE_NS
    with agent_socket.bind(str(tmp_path)) as events:
        short, longer = telling.Telling(order), telling.Telling(order)
        for one in (short, longer):
            assert one.sleep_ns(0) is None
            one.started(0)
            one.enforce(after_ns - 1)
            assert one.sleep_ns(after_ns - 1) == 1
        assert short.ended()
        longer.enforce(after_ns)
        assert longer.sleep_ns(after_ns) is None
        longer.enforce(2 * after_ns)
        assert longer.ended()
        told = [told.event for told in agent_socket.received(events)]
    assert told == ["exited", "started", "exited"]


async def test_unknown_messages_to_the_agent_are_ignored(world: World) -> None:
    wrong: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: wrong.append(context))
    form = b'{"event": "exited", "job_id": "%b", "attempt": %b}'
    for said in (
        b"",
        b"not json",
        b"[1]",
        form % (b"job", b'"1"'),
        form % (b"\xff", b"1"),
        b"[" * 4_000,
    ):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(said, f"{world.supervisors.state_dir}/{AGENT_SOCKET}")
    key = await world.shell("job", "true")
    assert (await world.told(key, "exited"))["exit_code"] == 0
    assert wrong == []


def test_a_supervisor_sleeps_while_the_agent_s_queue_is_full(tmp_path: Path) -> None:
    with agent_socket.bind(str(tmp_path)):
        while telling.tell(f"{tmp_path}/{AGENT_SOCKET}", {"event": "started"}):
            pass
        before_s = time.thread_time()
        assert not telling.tell(f"{tmp_path}/{AGENT_SOCKET}", {"event": "exited"}, 0.3)
        assert time.thread_time() - before_s < 0.15


async def test_a_killed_supervisor_takes_its_job_along_and_is_reported_lost(world: World) -> None:
    key = await world.shell("job", f'setsid sh -c "{PATIENT}" & {PATIENT}')
    identity = await world.told(key, "started")
    await world.printed(key, b"ready\nready")
    below = processes.descendants(identity["pid"])
    kill(identity["pid"])
    record = await world.told(key, "exited")
    assert (record["reason"], record["exit_code"], record["clean"]) == (
        "supervisor_lost",
        None,
        True,
    )
    assert record["stdout_bytes"] == 12
    for pid in below:
        await gone(pid, 1.0)
    assert output.read(world.supervisors.job_dir(key), "stdout", 0, 100).end


async def test_processes_of_a_lost_supervisor_are_ended_without_a_zygote(world: World) -> None:
    key = await world.shell("job", f'setsid sh -c "{PATIENT}" & {PATIENT}')
    identity = await world.told(key, "started")
    await world.printed(key, b"ready\nready")
    below = processes.descendants(identity["pid"])
    os.kill(world.supervisors._zygote.pid, signal.SIGSTOP)
    kill(identity["pid"])
    os.kill(world.supervisors._zygote.pid, signal.SIGKILL)
    assert (await world.told(key, "exited"))["clean"]
    for pid in below:
        await gone(pid, 1.0)


async def test_a_killed_zygote_leaves_jobs_running_and_is_replaced(world: World) -> None:
    key = await world.shell("job", "echo ready; sleep 0.5; exit 4")
    await world.printed(key, b"ready")
    kill(world.supervisors._zygote.pid)
    assert (await world.run("next", "exit 5"))["exit_code"] == 5
    assert (await world.told(key, "exited"))["exit_code"] == 4


async def test_a_zygote_killed_under_many_launches_starts_each_once(world: World) -> None:
    launches = [
        asyncio.create_task(
            world.shell(f"job-{n}", "echo ran >> mark; sleep 0.05", ignore_lease=True)
        )
        for n in range(60)
    ]
    for _ in range(4):
        await asyncio.sleep(0.02)
        kill(world.supervisors._zygote.pid)
    keys = await asyncio.gather(*launches)
    records_told = [await world.told(key, "exited") for key in keys]
    executed = [record for record in records_told if record["executed"]]
    assert len((world.state_dir / "mark").read_text().split()) == len(executed)
    assert all(world.names(key).count("exited") == 1 for key in keys)
    assert {record["reason"] for record in records_told} <= {"exited", "not_started"}


async def test_a_restarted_agent_adopts_a_living_job(tmp_path: Path) -> None:
    job_pid, zygote_pid = killed_agent(tmp_path / "agent", "echo ready; sleep 1.5; exit 6")
    await gone(zygote_pid)
    async with world_at(tmp_path / "agent") as world:
        assert world.supervisors.known() == [("job", 1, True, None)]
        assert (await world.told(("job", 1), "started"))["job_pid"] == job_pid
        assert (await world.told(("job", 1), "exited"))["exit_code"] == 6
        assert world.names(("job", 1)) == ["started", "exited"]


async def test_a_restarted_agent_finds_the_end_of_a_job_that_nobody_watched(tmp_path: Path) -> None:
    job_pid, _ = killed_agent(tmp_path / "agent", "sleep 0.2; exit 6")
    await gone(job_pid)
    await asyncio.sleep(0.2)
    async with world_at(tmp_path / "agent") as world:
        (found,) = world.supervisors.known()
        assert (found.living, found.exit and found.exit["exit_code"]) == (False, 6)
        assert (await world.told(("job", 1), "exited"))["exit_code"] == 6
        assert world.names(("job", 1)) == ["started", "exited"]


async def test_a_restarted_agent_can_stop_what_it_adopted(tmp_path: Path) -> None:
    killed_agent(tmp_path / "agent", "sleep 600")
    async with world_at(tmp_path / "agent") as world:
        await world.supervisors.stop(("job", 1))
        assert (await world.told(("job", 1), "exited"))["reason"] == "stopped"


async def test_an_attempt_is_started_at_most_once(world: World) -> None:
    key = await world.shell("job", "true")
    with pytest.raises(AlreadyStarted, match="job attempt 1 was started before"):
        await world.shell("job", "true")
    await world.told(key, "exited")
    world.supervisors.forget(key)
    with pytest.raises(AlreadyStarted):
        await world.shell("job", "true")
    assert (await world.run("job", "exit 2", attempt=2))["exit_code"] == 2


async def test_a_marker_without_a_supervisor_is_reported_and_never_started(tmp_path: Path) -> None:
    job_dir = tmp_path / "agent" / "jobs" / "job.3"
    records.place_marker(str(job_dir), {"rank": 2})
    async with world_at(tmp_path / "agent") as world:
        record = await world.told(("job", 3), "exited")
        assert (record["reason"], record["executed"], record["rank"]) == ("not_started", False, 2)
        assert not records.claim(str(job_dir), lost._without_process("job", 3, 2))


async def test_another_process_with_the_supervisors_number_is_not_taken_for_it(
    tmp_path: Path,
) -> None:
    job_dir = str(tmp_path / "agent" / "jobs" / "job.1")
    records.place_marker(job_dir, {"rank": 0})
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as stranger:  # noqa: ASYNC220
        found = processes.process(stranger.pid)
        assert found is not None
        who = lost._without_process("job", 1, 0)
        who.update(
            pid=stranger.pid,
            start_ticks=found.start_ticks - 1,
            job_pid=stranger.pid,
            job_start_ticks=found.start_ticks - 1,
        )
        assert records.claim(job_dir, who)
        async with world_at(tmp_path / "agent") as world:
            assert (await world.told(("job", 1), "exited"))["reason"] == "supervisor_lost"
        assert stranger.poll() is None
        stranger.kill()


async def test_two_agents_do_not_share_a_directory(world: World) -> None:
    with pytest.raises(Refused, match="another agent uses"):
        await World(world.state_dir).supervisors.start()


async def test_agents_on_one_host_leave_each_others_members_alone(tmp_path: Path) -> None:
    async with world_at(tmp_path / "a") as first, world_at(tmp_path / "b") as second:
        key = await first.shell("gang", "sleep 600")
        await second.shell("gang", "sleep 600", rank=1)
        await second.told(key, "started")
        kill((await first.told(key, "started"))["pid"])
        assert (await first.told(key, "exited"))["reason"] == "supervisor_lost"
        status = await second.supervisors.status(key)
        assert status is not None and status["state"] == "running"


async def test_lost_datagrams_delay_events_and_lose_none(world: World) -> None:
    (world.state_dir / AGENT_SOCKET).unlink()
    key = await world.shell("job", "sleep 1.5; exit 3")
    await world.told(key, "started")
    assert "exited" not in world.names(key)
    assert (await world.told(key, "exited"))["exit_code"] == 3


async def test_a_supervisor_that_does_not_answer_is_killed_with_its_job(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.node_agent.supervision.supervisor_client.STOP_TIMEOUT_S", 0.2)
    key = await world.shell("job", PATIENT)
    identity = await world.told(key, "started")
    os.kill(identity["pid"], signal.SIGSTOP)
    await world.supervisors.kill(key)
    assert (await world.told(key, "exited"))["reason"] == "supervisor_lost"
    await gone(identity["job_pid"], 1.0)


@pytest.mark.parametrize("failing", [(control_client, "_exchange"), (records, "read_exit")])
async def test_a_supervisor_that_cannot_be_asked_is_killed_with_its_job(
    world: World, monkeypatch: pytest.MonkeyPatch, failing: tuple[object, str]
) -> None:
    def no_descriptor(*arguments: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("services.node_agent.supervision.supervisor_client.STOP_TIMEOUT_S", 0.2)
    key = await world.shell("job", PATIENT)
    identity = await world.told(key, "started")
    os.kill(identity["pid"], signal.SIGSTOP)
    with monkeypatch.context() as patched:
        patched.setattr(*failing, no_descriptor)
        await world.supervisors.kill(key)
    assert (await world.told(key, "exited"))["reason"] == "supervisor_lost"
    await gone(identity["job_pid"], 1.0)


async def test_forgetting_keeps_the_output(world: World) -> None:
    key = await world.shell("job", "echo kept; sleep 0.3")
    with pytest.raises(Refused, match="has not ended"):
        world.supervisors.forget(key)
    await world.told(key, "exited")
    world.supervisors.forget(key)
    assert output.read(world.supervisors.job_dir(key), "stdout", 0, 100) == (0, b"kept\n", True)


async def test_a_request_that_cannot_be_run_is_refused_before_any_marker(world: World) -> None:
    for fields in (
        {"job_id": "../up"},
        {"argv": []},
        {"env": {"A=B": "c"}},
        {"argv": ["x\0y"]},
        {"argv": ["\ud800"]},
    ):
        given = {**world.request("job", "true").__dict__, **fields}
        with pytest.raises(Refused, match="cannot be started"):
            await world.supervisors.launch(type(world.request("job", "true"))(**given))
    assert os.listdir(world.state_dir / "jobs") == []


async def test_a_large_environment_is_carried(world: World) -> None:
    env = {f"NAME_{n}": "v" * 10_000 for n in range(100)}
    assert (await world.run("job", 'test "$NAME_99" = "$NAME_0"; exit $?', env=env))[
        "exit_code"
    ] == 0


async def test_job_has_the_limit_of_open_files_that_the_agent_had_first(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
    first_limit.cache_clear()
    try:
        raise_limit()
        async with world_at(tmp_path / "agent") as world:
            assert (await world.run("job", "ulimit -Sn; ulimit -Hn"))["exit_code"] == 0
            data = output.read(world.supervisors.job_dir(("job", 1)), "stdout", 0, 100)[1]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        first_limit.cache_clear()
    assert data == f"300\n{hard}\n".encode()


def test_the_zygote_survives_what_it_cannot_read(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    program = str(ROOT / "services/node_agent/supervisor/zygote.py")
    line = [sys.executable, "-I", "-S", program, "{}"]
    with theirs:
        zygote = subprocess.Popen(line, stdin=theirs)
    with ours, ours.makefile("rb") as replies:
        huge = order.MAX_FRAME_BYTES + 1
        for bad in (
            b"\0\0\0\2{]",
            b"\0\0\0\2{}",
            order.frame_of([]),
            huge.to_bytes(4, "big") + bytes(huge),
            order.frame_of({"job_id": 1}),
        ):
            ours.sendall(bad)
            assert b'"error"' in replies.read(int.from_bytes(replies.read(4), "big"))
        assert zygote.poll() is None
    assert zygote.wait(10) == 0


def test_the_zygote_needs_the_standard_library_only() -> None:
    code = (
        "import sys; sys.path.insert(0, '.'); import services.node_agent.supervisor.supervisor, "
        "sys; print(*sys.modules)"
    )
    found = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    ).stdout.split()
    assert not {"msgspec", "asyncio", "subprocess", "libs"} & set(found)


async def test_ended_supervisors_are_reaped(world: World) -> None:
    await world.run("job", "true")
    ended = (await world.told(("job", 1), "started"))["pid"]
    kill(ended)
    async with asyncio.timeout(WAIT_S):
        while ended in processes.children(world.supervisors._zygote.pid):
            await asyncio.sleep(0.01)
