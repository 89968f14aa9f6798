"""`muster exec` as a child process against a real cluster: streams, terminal, signals, ends."""

import asyncio
import os
import pty
import signal
import subprocess
import termios
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.integration.channel_world import (
    MUSTER,
    PATIENCE_S,
    World,
    channel_world,
    eventually,
    is_gone,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

STUBBORN = "trap '' HUP TERM; echo $$; while :; do sleep 0.1; done"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    async with channel_world(tmp_path_factory.mktemp("exec"), MUSTER_EXECS_PER_JOB="3") as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def job(world: World) -> str:
    return await world.job(gpus=2)


class Terminal:
    """`muster exec -it` with a terminal of its own."""

    def __init__(self, world: World, *arguments: str, rows: int = 30, columns: int = 100) -> None:
        self.master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (rows, columns))
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        self.seen = b""
        self.process = subprocess.Popen(
            [*MUSTER, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=world.environ(TERM="vt220"),
            preexec_fn=lambda: os.login_tty(os.dup(0)),
        )
        os.set_blocking(self.master, False)

    def type(self, text: bytes) -> None:
        os.write(self.master, text)

    def _read(self) -> None:
        try:
            self.seen += os.read(self.master, 65_536)
        except BlockingIOError:
            pass

    async def shows(self, text: bytes) -> None:
        def found() -> bool:
            self._read()
            return text in self.seen

        try:
            await eventually(found, 20.0)
        except AssertionError:
            raise AssertionError(f"{text!r} is not in {self.seen!r}") from None

    async def end(self) -> int:
        def ended() -> bool:
            self._read()
            return self.process.poll() is not None

        await eventually(ended)
        self._read()
        return self.process.returncode

    def is_as_before(self) -> bool:
        return termios.tcgetattr(self.slave) == self.before

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)
        os.close(self.slave)


async def test_exec_passes_streams_and_the_exit_code(world: World, job: str) -> None:
    assert await world.muster("exec", job, "--", "sh", "-c", "echo out; echo err >&2; exit 7") == (
        7,
        "out\n",
        "err\n",
    )


async def test_exec_reports_a_command_that_cannot_be_executed(world: World, job: str) -> None:
    code, out, said = await world.muster("exec", job, "no-such-command")
    assert (code, out) == (127, "") and "no-such-command was not found" in said


async def test_exec_has_the_jobs_devices_and_directory(world: World, job: str) -> None:
    shown = await world.chaos.get(f"/v1/jobs/{job}")
    code, out, _ = await world.muster(
        "exec", job, "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES $MUSTER_JOB_ID; pwd"
    )
    devices = ",".join(gpu["uuid"] for gpu in shown["members"][0]["gpus"])
    assert (code, out) == (0, f"{devices} {job}\n{world.chaos.folder}\n") and devices.count(
        ","
    ) == 1


async def test_exec_forwards_the_whole_input(world: World, job: str) -> None:
    data = os.urandom(10 << 20)
    process = world.start("exec", "-i", job, "cat", stdin=subprocess.PIPE)
    out, err = await asyncio.to_thread(process.communicate, data, PATIENCE_S)
    assert (process.returncode, err) == (0, b"") and out == data


async def test_exec_without_i_has_no_input(world: World, job: str) -> None:
    assert await world.muster("exec", job, "cat", stdin=b"x") == (0, "", "")


async def test_input_does_not_block_a_command_that_does_not_read(world: World, job: str) -> None:
    code, out, _ = await world.muster(
        "exec", "-i", job, "--", "sh", "-c", "exec <&-; sleep 0.5; echo done", stdin=bytes(4 << 20)
    )
    assert (code, out) == (0, "done\n")


async def test_the_first_ctrl_c_goes_to_the_command_and_the_second_ends_exec(
    world: World, job: str
) -> None:
    first = world.start(
        "exec",
        job,
        "--",
        "sh",
        "-c",
        "trap 'echo heard; exit 9' INT; echo in; while :; do sleep 0.1; done",
    )
    second = world.start(
        "exec", job, "--", "sh", "-c", "trap 'echo heard' INT; trap '' HUP; " + STUBBORN
    )
    assert first.stdout is not None and second.stdout is not None
    await asyncio.to_thread(first.stdout.readline)
    pid = int(await asyncio.to_thread(second.stdout.readline))
    first.send_signal(signal.SIGINT)
    out, _ = await asyncio.to_thread(first.communicate, None, PATIENCE_S)
    assert (first.returncode, out) == (9, b"heard\n")
    second.send_signal(signal.SIGINT)
    assert await asyncio.to_thread(second.stdout.readline) == b"heard\n"
    second.send_signal(signal.SIGINT)
    assert await asyncio.to_thread(second.wait, PATIENCE_S) == 130
    await eventually(lambda: is_gone(pid))


async def test_ctrl_c_works_while_input_is_blocked(world: World, job: str) -> None:
    process = world.start("exec", "-i", job, "sleep", "60", stdin=subprocess.PIPE)
    assert process.stdin is not None
    os.set_blocking(process.stdin.fileno(), False)
    stuck_since = time.monotonic()
    while time.monotonic() - stuck_since < 1.0:
        try:
            os.write(process.stdin.fileno(), bytes(65_536))
            stuck_since = time.monotonic()
        except BlockingIOError:
            await asyncio.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert await asyncio.to_thread(process.wait, PATIENCE_S) == 130
    process.stdin.close()


async def test_the_remote_terminal_follows_the_local_size(world: World, job: str) -> None:
    terminal = Terminal(world, "exec", "-it", job)
    try:
        terminal.type(b"stty size; echo $TERM-is-it\n")
        await terminal.shows(b"30 100")
        await terminal.shows(b"vt220-is-it")
        assert not terminal.is_as_before()
        terminal.type(
            b"""sh -c "trap 'echo now \\$(stty size); exit' WINCH; echo trap''ped; """
            b"""while :; do sleep 0.1; done"\n"""
        )
        await terminal.shows(b"trapped")
        termios.tcsetwinsize(terminal.slave, (44, 55))
        terminal.process.send_signal(signal.SIGWINCH)
        await terminal.shows(b"now 44 55")
        terminal.type(b"exit 5\n")
        assert await terminal.end() == 5 and terminal.is_as_before()
    finally:
        terminal.close()


async def test_ctrl_c_in_a_terminal_ends_the_foreground_process(world: World, job: str) -> None:
    terminal = Terminal(world, "exec", "-it", job, "--", "sh")
    try:
        terminal.type(b"echo rea''dy; sleep 60\n")
        await terminal.shows(b"ready")
        await asyncio.sleep(0.3)
        terminal.type(b"\x03")
        terminal.type(b"echo still-h''ere; exit\n")
        await terminal.shows(b"still-here")
        assert await terminal.end() in (0, 130)
    finally:
        terminal.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
async def test_the_terminal_is_restored_when_exec_is_ended(
    world: World, job: str, number: signal.Signals
) -> None:
    terminal = Terminal(world, "exec", "-it", job, "--", "sh", "-c", "echo in; sleep 60")
    try:
        await terminal.shows(b"in")
        terminal.process.send_signal(number)
        assert await terminal.end() == 128 + number and terminal.is_as_before()
    finally:
        terminal.close()


async def test_tty_without_a_terminal_is_refused(world: World, job: str) -> None:
    code, _, said = await world.muster("exec", "-it", job, stdin=b"")
    assert code == 2 and "not a terminal" in said


async def test_a_killed_client_ends_its_command(world: World, job: str) -> None:
    process = world.start("exec", job, "--", "sh", "-c", STUBBORN)
    assert process.stdout is not None
    pid = int(await asyncio.to_thread(process.stdout.readline))
    process.kill()
    process.wait()
    await eventually(lambda: is_gone(pid), 10.0)


async def test_a_setting_limits_the_commands_in_one_job(world: World) -> None:
    job = await world.job()
    held = [world.start("exec", job, "--", "sh", "-c", "echo in; sleep 60") for _ in range(3)]
    for each in held:
        assert each.stdout is not None
        await asyncio.to_thread(each.stdout.readline)
    code, _, said = await world.muster("exec", job, "true")
    assert code == 1 and "3 are running in this job already" in said
    await world.end(job)
    for each in held:
        assert await asyncio.to_thread(each.wait, PATIENCE_S) == 137


async def test_an_exec_ends_with_the_job_and_does_not_prolong_it(world: World) -> None:
    job = await world.job("echo up; sleep 3; exit 0")
    code, out, said = await world.muster("exec", job, "--", "sh", "-c", STUBBORN)
    assert code == 137 and "ended with its job" in said
    await world.until(job, "completed")
    assert is_gone(int(out))
    code, _, said = await world.muster("exec", job, "true")
    assert code == 1 and "has ended" in said


async def test_a_slow_reader_blocks_the_command_and_no_buffer_grows(world: World, job: str) -> None:
    process = world.start("exec", job, "--", "sh", "-c", "echo $$; exec cat /dev/zero")
    try:
        assert process.stdout is not None
        pid = int(await asyncio.to_thread(process.stdout.readline))
        await asyncio.sleep(1.0)
        before = _written(pid)
        await asyncio.sleep(2.0)
        assert _written(pid) == before < 2 << 20
    finally:
        process.kill()
        process.wait()


def _written(pid: int) -> int:
    """Bytes that a process has written."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("wchar")).split()[1])


async def test_only_the_owner_operators_and_administrators_may_exec(world: World, job: str) -> None:
    keys = {}
    for user, role in (
        ("ada", "member"),
        ("bob", "member"),
        ("olga", "operator"),
        ("vera", "viewer"),
    ):
        status, made = await world.chaos.try_once(
            "POST", "/v1/keys", json={"user": user, "role": role}
        )
        assert status == 201, made
        keys[user] = {
            "MUSTER_API_KEY": made["key"],
            "MUSTER_URL": str(world.chaos.session._base_url),
        }
    assert (await world.muster("exec", job, "true", **keys["olga"]))[0] == 0
    for user in ("ada", "bob"):
        code, _, said = await world.muster("exec", job, "true", **keys[user])
        assert code == 1 and "may change only its own" in said
    code, _, said = await world.muster("exec", job, "true", **keys["vera"])
    assert code == 1 and "the role viewer may not use GET /v1/jobs/{ref}/exec" in said
    code, _, said = await world.muster(
        "exec", job, "true", MUSTER_API_KEY="msk_x_y", MUSTER_URL=keys["ada"]["MUSTER_URL"]
    )
    assert code == 1 and "does not accept your key" in said


async def test_exec_is_recorded_without_secrets(world: World, job: str) -> None:
    await world.muster("exec", job, "--", "env", "API_TOKEN=verysecretvalue", "true")
    await world.muster("exec", "no-such-job", "--", "touch", "here")
    await asyncio.sleep(0.5)
    rows = (await world.chaos.get("/v1/access", route="/v1/jobs/{ref}/exec", limit="1000"))[
        "access"
    ]
    found = [(row["ids"], row["status"], row["detail"]) for row in rows[-2:]]
    assert found == [([job], 101, "env API_TOKEN=[hidden] true"), (["no-such-job"], 404, "")]
    assert "touch here" not in (await world.muster("log", "--access"))[1]


async def test_an_exec_ends_with_the_agent_and_the_job_continues(world: World, job: str) -> None:
    process = world.start("exec", job, "--", "sh", "-c", STUBBORN)
    assert process.stdout is not None
    pid = int(await asyncio.to_thread(process.stdout.readline))
    world.kill_agent()
    await eventually(lambda: is_gone(pid), 10.0)
    _, err = await asyncio.to_thread(process.communicate, None, PATIENCE_S)
    assert process.returncode == 1 and b"does not hold this channel any more" in err
    await eventually(lambda: _again(world, job))


async def _again(world: World, job: str) -> bool:
    return (await world.muster("exec", job, "echo", "again"))[:2] == (0, "again\n")
