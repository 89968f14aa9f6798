"""One job under its supervisor: how it starts, how it is fed and read, how it ends.

Real processes throughout.
"""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from supervision_world import PATIENT, World, gone, python, world_at

from libs.common.errors import Refused
from services.node_agent.machine import processes
from services.node_agent.supervision import control_client, output


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with world_at(tmp_path / "agent") as made:
        yield made


async def test_the_exit_code_of_the_main_process_is_recorded(world: World) -> None:
    record = await world.run("job", "echo out; echo err >&2; exit 7")
    assert (record["exit_code"], record["signal"], record["reason"], record["clean"]) == (
        7,
        None,
        "exited",
        True,
    )
    assert (record["stdout_bytes"], record["stderr_bytes"], record["dropped_bytes"]) == (4, 4, 0)
    assert world.output(("job", 1)) == b"out\n" and world.output(("job", 1), "stderr") == b"err\n"
    assert record["started_ns"] < record["ended_ns"] and record["duration_ns"] > 0
    assert world.names(("job", 1)) == ["started", "exited"]


async def test_a_job_ended_by_a_signal_has_no_exit_code(world: World) -> None:
    record = await world.run("job", "kill -SEGV $$")
    assert (record["exit_code"], record["signal"], record["reason"]) == (
        None,
        signal.SIGSEGV,
        "signalled",
    )


@pytest.mark.parametrize(
    ("argv", "workdir", "code", "words"),
    [
        (("no-such-command",), "/tmp", 127, "no-such-command was not found in PATH="),
        (("/no/such/command",), "/tmp", 127, "/no/such/command was not found"),
        (("/etc/passwd",), "/tmp", 126, "cannot be executed"),
        (("true",), "/no/such/folder", 125, "working directory /no/such/folder does not exist"),
        (("true",), "/etc/passwd", 125, "cannot be entered"),
    ],
)
async def test_a_command_that_cannot_be_executed_says_why(
    world: World, argv: tuple[str, ...], workdir: str, code: int, words: str
) -> None:
    record = await world.told(await world.launch("job", *argv, workdir=workdir), "exited")
    assert (record["reason"], record["exit_code"], record["executed"]) == (
        "exec_failed",
        code,
        False,
    )
    assert words in record["detail"]
    assert world.names(("job", 1)) == ["exited"]


async def test_a_stop_lets_the_job_end_by_itself(world: World) -> None:
    key = await world.shell(
        "job", "trap 'echo bye; exit 3' TERM; echo ready; while :; do sleep 0.02; done"
    )
    await world.printed(key, b"ready")
    await world.supervisors.stop(key, signal.SIGTERM, 10.0)
    record = await world.told(key, "exited")
    assert (record["reason"], record["exit_code"]) == ("stopped", 3)
    assert world.output(key).endswith(b"bye\n")


async def test_a_job_that_ignores_sigterm_is_killed_after_the_grace(world: World) -> None:
    key = await world.shell("job", PATIENT)
    await world.printed(key, b"ready")
    asked = time.monotonic()
    await world.supervisors.stop(key, signal.SIGTERM, 0.4)
    record = await world.told(key, "exited")
    assert (record["reason"], record["signal"]) == ("stopped", signal.SIGKILL)
    assert time.monotonic() - asked >= 0.4


async def test_a_second_stop_can_only_shorten_the_grace(world: World) -> None:
    key = await world.shell("job", PATIENT)
    await world.printed(key, b"ready")
    await world.supervisors.stop(key, signal.SIGTERM, 0.5)
    await world.supervisors.stop(key, signal.SIGTERM, 3600.0)
    record = await world.told(key, "exited")
    assert record["signal"] == signal.SIGKILL and record["duration_ns"] < 10e9


async def test_a_stop_with_another_signal_sends_that_too(world: World) -> None:
    key = await world.shell(
        "two",
        (
            "trap 'echo one' USR1; trap 'echo two; exit 3' TERM; echo ready; while :; do sleep "
            "0.05; done"
        ),
    )
    await world.printed(key, b"ready")
    await world.supervisors.stop(key, signal.SIGUSR1, 60.0)
    await world.printed(key, b"one")
    await world.supervisors.stop(key, signal.SIGUSR1, 60.0)
    await world.supervisors.stop(key, signal.SIGTERM, 20.0)
    record = await world.told(key, "exited")
    assert record["exit_code"] == 3 and world.output(key).split() == [b"ready", b"one", b"two"]


async def test_kill_ends_everything_at_once(world: World) -> None:
    key = await world.shell("job", f"({PATIENT}) & {PATIENT}")
    await world.printed(key, b"ready")
    await world.supervisors.kill(key)
    record = await world.told(key, "exited")
    assert (record["reason"], record["signal"], record["clean"]) == (
        "stopped",
        signal.SIGKILL,
        True,
    )


async def test_a_signal_reaches_the_whole_process_group(world: World) -> None:
    child = "trap 'echo child' USR1; echo ready; while :; do sleep 0.02; done"
    key = await world.shell("job", f"trap 'echo usr' USR1; sh -c \"{child}\" & wait; wait")
    await world.printed(key, b"ready")
    await world.supervisors.send_signal(key, signal.SIGUSR1)
    await world.printed(key, b"usr")
    await world.printed(key, b"child")


async def test_a_daemonised_grandchild_is_swept(world: World) -> None:
    key = await world.shell(
        "job", "setsid sh -c \"trap '' TERM; (echo $$; exec sleep 600) &\" & sleep 0.2; exit 0"
    )
    record = await world.told(key, "exited")
    assert (record["exit_code"], record["clean"], record["leftovers"]) == (0, True, [])
    mark = os.fsencode(f"MUSTER_JOB_DIR={world.supervisors.job_dir(key)}")
    assert not [pid for pid in processes.all_pids() if processes.environment_holds(pid, [mark])]


async def test_a_process_outside_the_group_is_stopped_too(world: World) -> None:
    key = await world.shell("job", f'setsid sh -c "{PATIENT}" & wait')
    await world.printed(key, b"ready")
    await world.supervisors.stop(key, signal.SIGTERM, 0.1)
    assert (await world.told(key, "exited"))["clean"]


# Signals 32 and 33 belong to glibc: its posix_spawn (make uses it) leaves them ignored, and no
# program can set or send them by its calls.
GLIBC_OWN = 1 << 31 | 1 << 32


async def test_ignored_and_blocked_signals_are_not_inherited(world: World) -> None:
    key = await world.launch("job", "cat", "/proc/self/status")
    await world.told(key, "exited")
    lines = dict(
        line.split(b":\t", 1) for line in world.output(key).splitlines() if line.startswith(b"Sig")
    )
    assert int(lines[b"SigIgn"], 16) & ~GLIBC_OWN == 0
    assert int(lines[b"SigBlk"], 16) == 0


async def test_no_descriptor_is_inherited_but_the_three(world: World) -> None:
    key = await world.launch(
        "job", *python("import os; print(sorted(map(int, os.listdir('/proc/self/fd')))[:-1])")
    )
    await world.told(key, "exited")
    assert world.output(key) == b"[0, 1, 2]\n"


async def test_the_job_knows_its_attempt(world: World) -> None:
    await world.run("job", "echo $MUSTER_JOB_ID $MUSTER_ATTEMPT $MUSTER_RANK", attempt=4, rank=2)
    assert world.output(("job", 4)) == b"job 4 2\n"


async def test_input_sent_twice_arrives_once(world: World) -> None:
    key = await world.shell("job", "cat", stdin=True)
    assert await world.supervisors.write_stdin(key, 0, b"hello ") == (6, False)
    assert await world.supervisors.write_stdin(key, 0, b"hello ") == (6, False)
    assert await world.supervisors.write_stdin(key, 3, b"lo world") == (11, False)
    with pytest.raises(Refused, match="the next byte wanted is 11"):
        await world.supervisors.write_stdin(key, 20, b"gap")
    assert await world.supervisors.write_stdin(key, 11, b"", eof=True) == (11, True)
    assert (await world.told(key, "exited"))["exit_code"] == 0
    assert world.output(key) == b"hello world"


async def test_input_waits_for_a_job_that_reads_slowly(world: World) -> None:
    key = await world.shell("job", "sleep 0.3; cat | wc -c", stdin=True)
    assert await world.supervisors.write_stdin(key, 0, b"x" * 2_000_000, eof=True) == (
        2_000_000,
        True,
    )
    await world.told(key, "exited")
    assert world.output(key) == b"2000000\n"


async def test_a_job_without_input_reads_an_end_of_file(world: World) -> None:
    assert (await world.run("job", "cat; echo done"))["exit_code"] == 0
    key = await world.shell("closed", "sleep 600")
    assert await world.supervisors.write_stdin(key, 0, b"x") == (0, True)


async def test_a_million_lines_are_kept(world: World) -> None:
    record = await world.run("job", "seq 1000000")
    assert record["stdout_bytes"] == 6_888_896
    assert world.output(("job", 1)).endswith(b"\n999999\n1000000\n")


async def test_output_above_the_limit_rotates_and_offsets_stay(world: World) -> None:
    record = await world.run("job", "seq 100000", output_limit_bytes=100_000)
    job_dir = world.supervisors.job_dir(("job", 1))
    whole = "".join(f"{n}\n" for n in range(1, 100_001)).encode()
    piece = output.read(job_dir, "stdout", 0, 1 << 30)
    assert record["stdout_bytes"] == len(whole) and record["dropped_bytes"] == 0
    assert 50_000 <= len(piece.data) <= 100_000 and piece.end
    assert piece.data == whole[piece.offset :]
    middle = output.read(job_dir, "stdout", piece.offset + 49_990, 20)
    assert middle == (piece.offset + 49_990, whole[piece.offset + 49_990 :][:20], False)
    assert output.tail(job_dir, "stdout", 7).data == b"100000\n"


async def test_a_reader_follows_while_the_output_rotates(world: World) -> None:
    key = await world.shell(
        "job", "for i in 1 2 3 4 5 6 7 8; do seq 20000; done", output_limit_bytes=200_000
    )
    whole = "".join(f"{n}\n" for n in range(1, 20_001)).encode() * 8
    offset, end = 0, False
    while not end:
        piece = output.read(world.supervisors.job_dir(key), "stdout", offset, 10_000)
        assert piece.offset >= offset and piece.data == whole[piece.offset :][: len(piece.data)]
        offset, end = piece.offset + len(piece.data), piece.end
        await asyncio.sleep(0)
    assert offset == len(whole)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 128 KiB."""
    small = tmp_path / "small"
    small.mkdir()
    if (
        os.geteuid()
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", small], check=False
        ).returncode
    ):
        pytest.skip("may not mount a small file system here")
    yield small
    subprocess.run(["umount", "-l", small], check=True)


async def test_a_full_disk_costs_output_and_nothing_else(small_disk: Path) -> None:
    async with world_at(small_disk / "agent") as world:
        record = await world.run("job", "head -c 1000000 /dev/zero; exit 5")
        assert record["exit_code"] == 5
        assert (
            record["dropped_bytes"] > 800_000
            and record["stdout_bytes"] + record["dropped_bytes"] == 1_000_000
        )
        with pytest.raises(OSError, match="No space left"):
            await world.run("next", "true")


async def test_a_bad_request_is_answered_with_its_error(world: World) -> None:
    key = await world.shell("job", "sleep 600")
    await world.told(key, "started")
    for request, words in (
        ({"op": "dance"}, "no op 'dance'"),
        ({"op": "signal", "signal": 4711}, "4711 is not the number of a signal"),
        ({"op": "stop", "grace_s": -1}, "grace_s"),
        ({"op": "stdin", "offset": 0, "data": "%"}, "not base64"),
    ):
        with pytest.raises(Refused, match=words):
            await control_client.ask(world.supervisors.job_dir(key), request, 5.0)
    status = await world.supervisors.status(key)
    assert status is not None and status["state"] == "running"


async def test_a_paths_length_is_no_limit(tmp_path: Path) -> None:
    async with world_at(tmp_path / ("long" * 40) / "agent") as world:
        key = await world.shell("job", "sleep 600")
        await world.told(key, "started")
        await world.supervisors.stop(key, signal.SIGTERM, 5.0)
        assert (await world.told(key, "exited"))["signal"] == signal.SIGTERM


async def test_a_job_that_keeps_forking_is_ended(world: World) -> None:
    """Chains that move on and never grow: each generation starts one more and ends, two thousand at
    most.
    """
    chain = "f() { sleep 0.002; if [ $1 -gt 0 ]; then f $(($1 - 1)) & fi; }"
    key = await world.shell("job", f"{chain}; echo ready; f 1000 & f 1000 & sleep 20")
    await world.printed(key, b"ready")
    await asyncio.sleep(0.1)
    await world.supervisors.kill(key)
    assert (await world.told(key, "exited"))["clean"]


@pytest.mark.parametrize("code", [0, 9])
async def test_a_supervisor_told_to_end_by_the_machine_stops_its_job(
    world: World, code: int
) -> None:
    """The reason is one of a machine's fault, so the end uses up no retry."""
    job = f"trap 'exit {code}' TERM; echo ready; while :; do sleep 0.02; done"
    key = await world.shell("job", job)
    await world.printed(key, b"ready")
    identity = await world.told(key, "started")
    os.kill(identity["pid"], signal.SIGTERM)
    record = await world.told(key, "exited")
    assert (record["reason"], record["exit_code"]) == ("supervisor_lost", code)
    assert "the machine shuts down" in record["detail"]
    await gone(identity["pid"])
