"""`muster exec` and `muster port-forward` into a container of a real engine.

The rules are those of processes (docs/howto/enter-a-job.md).
"""

import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from agent_world import EXECS_PER_JOB, NODE, OWN_USER, WAIT_S, World
from containers_world import (  # noqa: F401
    WHY_NOT,
    image,
    inside,
    on_engine,
    order,
    until,
)

from libs.common import facts as f
from libs.common.messages import OutputAsk, OutputChunk, StdinPut, StdinTaken
from libs.common.messages.channel_messages import (
    CHUNK_BYTES,
    ChannelAnswer,
    ChannelAsk,
    ChannelClose,
    ChannelOpen,
    ChannelSignal,
    ChannelSize,
    Exec,
    Forward,
)
from libs.common.model import JobId
from libs.common.subjects import ask_node
from libs.embedded.servers import free_ports
from services.node_agent.supervision.container_processes import in_container
from services.node_agent.supervisor import records

pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)

JOB = JobId("j")
WAITS = "trap 'exit 3' TERM; echo ready; while true; do sleep 0.05; done"
# Ignores what may be ignored. It says so once it does.
STUBBORN = "trap '' HUP TERM INT; echo up; exec sleep 619"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async for made in on_engine(tmp_path, OWN_USER):
        yield made


async def running(world: World, script: str = WAITS, **wish: Any) -> None:
    await world.place(order(world, JOB, script, **wish))
    while not (await world.output(JOB, wait_ms=1_000)).data:
        pass


async def told(world: World, ask: ChannelAsk) -> str:
    answer = await world.bus.request(ask_node(NODE, "channel"), msgspec.msgpack.encode(ask), WAIT_S)
    return msgspec.msgpack.decode(answer, type=ChannelAnswer).error


async def begun(world: World, *words: str, name: str = "c", **wish: Any) -> None:
    assert await told(world, ChannelOpen(name, JOB, 1, Exec(words, **wish))) == ""


async def shell(world: World, script: str, name: str = "c", **wish: Any) -> None:
    await begun(world, "sh", "-c", script, name=name, **wish)


async def read(
    world: World, offset: int = 0, name: str = "c", stream: str = "stdout"
) -> OutputChunk:
    ask = OutputAsk(
        job_id=JOB,
        attempt=1,
        stream=stream,
        offset=offset,
        max_bytes=CHUNK_BYTES,
        wait_ms=10_000,
        channel=name,
    )
    answer = await world.bus.request(ask_node(NODE, "output"), msgspec.msgpack.encode(ask), WAIT_S)
    return msgspec.msgpack.decode(answer, type=OutputChunk)


async def rest(
    world: World, offset: int = 0, name: str = "c", stream: str = "stdout"
) -> tuple[str, int | None]:
    """Read the output from `offset` to its end, and the exit code."""
    data = b""
    while not (chunk := await read(world, offset + len(data), name, stream)).end:
        data += chunk.data
    assert chunk.error == ""
    return (data + chunk.data).decode(), chunk.exit_code


async def until_said(world: World, text: str, name: str = "c") -> str:
    """Read until the output holds a text; return all of it."""
    data = b""
    while text.encode() not in data:
        chunk = await read(world, len(data), name)
        assert not chunk.end, data
        data += chunk.data
    return data.decode()


async def put(world: World, offset: int, data: bytes, eof: bool = False) -> StdinTaken:
    message = msgspec.msgpack.encode(
        StdinPut(job_id=JOB, attempt=1, offset=offset, data=data, eof=eof, channel="c")
    )
    return msgspec.msgpack.decode(
        await world.bus.request(ask_node(NODE, "stdin"), message, WAIT_S), type=StdinTaken
    )


def facts_of(pid: int) -> dict[str, Any]:
    """Return what the engine gave a process: its namespaces, control groups and rights."""
    here = Path(f"/proc/{pid}")
    lines = (here / "status").read_text().splitlines()
    kept = ("Cap", "NoNewPrivs", "Seccomp", "Uid", "Gid", "Groups")
    return {
        "namespaces": {name: os.readlink(here / "ns" / name) for name in os.listdir(here / "ns")},
        "groups": (here / "cgroup").read_text(),
        "rights": [line for line in lines if line.startswith(kept)],
    }


async def test_a_command_has_what_the_engine_gave_the_job(world: World) -> None:
    await running(
        world,
        f"echo ready; exec sleep 611 #{WAITS}",
        env={"GREETING": "two\nlines"},
        workdir="/tmp",
        memory_bytes=256 << 20,
    )
    await shell(world, 'echo "$GREETING $MUSTER_JOB_ID $TERM-"; pwd; exec sleep 612', term="vt100")
    assert await until_said(world, "/tmp\n") == "two\nlines j -\n/tmp\n"
    (job,), (command,) = inside("611"), inside("612")
    assert facts_of(command) == facts_of(job)
    assert os.readlink(f"/proc/{command}/ns/pid") != os.readlink("/proc/self/ns/pid")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a job another user")
async def test_a_command_runs_as_the_user_of_the_container_and_may_open_its_streams(
    tmp_path: Path,
) -> None:
    async for world in on_engine(tmp_path, {"*": "daemon"}):
        await running(world)
        await shell(world, "id -u; echo by name > /dev/stdout; echo $(cat)", stdin=False)
        assert await rest(world) == ("1\nby name\n\n", 0)
        await begun(world, "sh", "-c", "id -u; echo by name > /dev/stderr", tty=True, name="d")
        assert await rest(world, name="d") == ("1\r\nby name\r\n", 0)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("sh", "-c", "exit 7"), 7, ""),
        (("sh", "-c", "kill -9 $$"), 137, ""),
        (("nosuch",), 127, "muster: the command nosuch was not found in the image\n"),
        (("/etc",), 126, "muster: the command /etc cannot be executed in the image\n"),
    ],
)
async def test_exit_code_of_a_command_is_returned(
    world: World, words: tuple[str, ...], code: int, said: str
) -> None:
    await running(world)
    await begun(world, *words)
    assert await rest(world) == ("", code)
    assert await rest(world, stream="stderr") == (said, code)


async def test_input_reaches_a_command_to_its_end(world: World) -> None:
    await running(world)
    await shell(world, "cat; echo over", stdin=True)
    await put(world, 0, b"typed\n", eof=True)
    assert await rest(world) == ("typed\nover\n", 0)


async def test_a_terminal_is_the_command_s_own(world: World) -> None:
    await running(world)
    await begun(world, "sh", "-i", tty=True, stdin=True, term="vt100", rows=24, columns=80)
    assert await told(world, ChannelSize("c", 33, 99)) == ""
    typed = b"echo $TERM $((40 + 2)); sleep 613 < /dev/tty\n"
    await put(world, 0, typed)
    at = len(await until_said(world, "vt100 42"))
    await until(lambda: inside("613") != [])
    await put(world, len(typed), b"\x03")
    await until(lambda: inside("613") == [])
    await put(world, len(typed) + 1, b"exit 5\n")
    assert (await rest(world, at))[1] == 5


async def test_a_signal_reaches_the_command_s_group_and_not_the_job(world: World) -> None:
    await running(world)
    await shell(world, "echo up; sleep 614")
    await until_said(world, "up")
    assert await told(world, ChannelSignal("c", signal.SIGTERM)) == ""
    assert (await rest(world, len("up\n")))[1] == 143
    await until(lambda: inside("614") == [])
    assert world.facts(f.JobFinished) == []


async def test_a_command_ends_with_its_channel_even_if_it_ignores_the_hang_up(world: World) -> None:
    await running(world)
    await shell(world, STUBBORN)
    await shell(world, "trap 'sleep 615' HUP; echo up; sleep 616", name="d")
    await until_said(world, "up")
    await until_said(world, "up", name="d")
    await told(world, ChannelClose("c"))
    await told(world, ChannelClose("d"))
    await until(lambda: [inside(word) for word in ("619", "615", "616")] == [[], [], []])
    assert world.facts(f.JobFinished) == []


async def test_a_command_that_works_in_groups_of_its_own_ends_with_its_channel(
    world: World,
) -> None:
    await running(world)
    await begun(world, "sh", "-i", tty=True, stdin=True)
    await put(world, 0, b"trap '' HUP; (trap '' HUP; sleep 617)\n")
    await until(lambda: inside("617") != [])
    await told(world, ChannelClose("c"))
    await until(lambda: inside("617") == [])


async def test_a_command_dies_with_its_agent_and_the_job_lives(world: World) -> None:
    await running(world)
    await shell(world, STUBBORN)
    await until_said(world, "up")
    await world.end()
    await until(lambda: inside("619") == [])
    await world.begin()
    assert world.facts(f.JobFinished) == []
    await shell(world, "echo again", "d")
    assert await rest(world, name="d") == ("again\n", 0)


async def test_a_command_never_keeps_a_job_from_ending(world: World) -> None:
    await running(world)
    await shell(world, STUBBORN)
    await until_said(world, "up")
    await world.scheduler.send(world.stop_order(JOB, grace_ms=8_000))
    finished = await world.said(f.JobFinished, JOB)
    assert (finished.exit_code, finished.reason) == (3, "stopped")
    text, code = await rest(world, len("up\n"))
    assert (text, code) == ("", 137)
    assert inside("619") == []
    assert (await world.said(f.JobReleased, JOB)).checks["container"] == "gone"


async def test_a_command_dies_with_the_supervisor(world: World) -> None:
    await running(world)
    await shell(world, STUBBORN)
    await until_said(world, "up")
    identity = records.read_identity(f"{world.state_dir}/jobs/j.1")
    assert identity is not None
    os.kill(identity["pid"], signal.SIGKILL)
    await world.said(f.JobReleased, JOB)
    await until(lambda: inside("619") == [])


async def test_a_process_left_in_the_background_lives_as_long_as_the_job(world: World) -> None:
    await running(world)
    await shell(world, "sleep 618 >/dev/null 2>&1 & echo left")
    assert await rest(world) == ("left\n", 0)
    await until(lambda: inside("618") != [])
    await world.scheduler.send(world.stop_order(JOB, grace_ms=8_000))
    await world.said(f.JobReleased, JOB)
    await until(lambda: inside("618") == [])


async def test_many_commands_one_after_another_and_at_once(world: World) -> None:
    await running(world)
    for turn in range(9):
        names = [f"{turn}.{number}" for number in range(EXECS_PER_JOB)]
        for name in names:
            await shell(world, f"echo {name}", name)
        for name in names:
            assert await rest(world, name=name) == (f"{name}\n", 0)
            await told(world, ChannelClose(name))


async def test_root_in_a_container_gets_no_file_of_the_node(world: World) -> None:
    await running(world)
    before = os.stat(os.devnull).st_mode
    await shell(world, "/bin/busybox chmod 600 /proc/self/fd/0; ls -l /proc/self/fd; true")
    text, _ = await rest(world)
    assert "/dev/null" not in text and os.stat(os.devnull).st_mode == before


async def test_a_port_on_which_the_container_listens_is_reached_and_no_other(world: World) -> None:
    port, free = free_ports(2)
    await running(world, f"echo ready; exec httpd -f -p 127.0.0.1:{port}")
    pids = in_container(f"{world.state_dir}/jobs/j.1")
    assert len(pids) == 2

    async def opened(to: int) -> str:
        return await told(world, ChannelOpen(f"p{to}", JOB, 1, Forward(to)))

    while "nothing listens" in (said := await opened(port)):
        pass
    assert said == ""
    assert f"nothing listens on port {free}" in await opened(free)
    with socket.create_server(("127.0.0.1", 0)) as mine:
        assert "is not the job's" in await opened(mine.getsockname()[1])
