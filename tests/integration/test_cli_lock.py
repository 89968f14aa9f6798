"""`muster lock` and `muster locks` as child processes, over real HTTP and a real scheduler."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.gateway_world import KEY, World, gateway_world
from tests.integration.test_gateway_locks import acquire, ask, deciding

MUSTER = "from libs.cli.main import main; main()"
# The command starts another process just after `kill_all` has read the first list of processes.
FORKS_LATE = """
import os, subprocess, sys, time
from pathlib import Path
from libs.cli.following import locked

late = Path(sys.argv[1])
locked.adopt_orphans()
forks = f"trap 'sleep 60 >/dev/null 2>&1 & echo $! > {late}' USR1; while :; do sleep 0.05; done"
child = subprocess.Popen(["sh", "-c", forks])
time.sleep(0.5)
listed = locked.descendants

def listed_before_a_fork(pid):
    found = listed(pid)
    if not late.exists():
        os.kill(child.pid, locked.signal.SIGUSR1)
        while not late.exists() or not late.read_text():
            time.sleep(0.01)
    return found

locked.descendants = listed_before_a_fork
print(locked.kill_all(child))
"""
# The command runs before its process id is known here, and a signal comes at that moment.
STARTS_SLOWLY = """
import os, signal, subprocess, sys, time
from libs.cli.following import locked
from libs.cli.main import main

class Slow(subprocess.Popen):
    def __init__(self, *words, **more):
        super().__init__(*words, **more)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

locked.subprocess.Popen = Slow
main()
"""
TOKEN = 'echo "$MUSTER_LOCK $MUSTER_LOCK_TOKEN"'


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with gateway_world(tmp_path) as found, deciding(found):
        yield found


async def begin(world: World, *words: str, program: str = MUSTER) -> Process:
    environ = {**os.environ, "MUSTER_URL": world.url, "MUSTER_API_KEY": KEY}
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, *words, env=environ, stdin=PIPE, stdout=PIPE, stderr=PIPE
    )


async def over(process: Process) -> tuple[int | None, str, str]:
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def muster(world: World, *words: str) -> tuple[int | None, str, str]:
    return await over(await begin(world, *words))


async def until_held(world: World) -> None:
    while not (await world.ask("GET", "/v1/locks"))["locks"]:
        await asyncio.sleep(0.02)


def text_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def lives(pid: int) -> bool:
    stat = text_of(Path(f"/proc/{pid}/stat"))
    return bool(stat) and " Z " not in stat


async def until_there(path: Path) -> str:
    while not text_of(path).endswith("\n"):
        await asyncio.sleep(0.02)
    return text_of(path).strip()


async def test_a_command_runs_under_a_lock_with_its_token_and_gives_it_back(world: World) -> None:
    code, out, err = await muster(world, "lock", "data", "--", "sh", "-c", f"{TOKEN}; exit 7")
    assert (code, err) == (7, "")
    name, token = out.split()
    assert name == "data" and int(token) > 0
    assert (await world.ask("GET", "/v1/locks"))["locks"] == []


async def test_a_held_lock_is_not_waited_for_longer_than_asked(world: World) -> None:
    await acquire(world, "other")
    code, out, err = await muster(world, "lock", "data", "--wait", "0s", "--", "echo", "ran")
    assert (code, out) == (1, "")
    assert "lock data is held by" in err
    assert "was not released" not in err


async def test_a_lock_that_is_not_free_in_time_is_not_released(world: World) -> None:
    await acquire(world, "other")
    code, out, err = await muster(world, "lock", "data", "--wait", "1s", "--", "echo", "ran")
    assert (code, out) == (1, "")
    assert "has ended" in err and "was not released" not in err
    locks = (await world.ask("GET", "/v1/locks"))["locks"]
    assert [lock["holder"] for lock in locks] == ["other"]


async def test_a_command_waits_for_the_lock_and_gets_a_larger_token(world: World) -> None:
    first = await acquire(world, "other")
    waits = await begin(world, "lock", "data", "--", "sh", "-c", TOKEN)
    while (await world.ask("GET", "/v1/locks/data"))["waiting"] == 0:
        await asyncio.sleep(0.02)
    await ask(world, "release", "other")
    code, out, _ = await over(waits)
    assert code == 0
    assert int(out.split()[1]) > first["token"]


async def test_a_lock_is_renewed_while_its_command_runs(world: World) -> None:
    code, _, err = await muster(world, "lock", "data", "--ttl", "5s", "--", "sleep", "8")
    assert (code, err) == (0, "")


async def test_a_command_ends_before_its_lock_when_no_renewal_is_answered(
    tmp_path: Path,
) -> None:
    grandchild = tmp_path / "pid"
    script = f"trap '' TERM; sh -c 'trap \"\" TERM; sleep 60' & echo $! > {grandchild}; wait"
    async with gateway_world(tmp_path) as world, deciding(world) as decides:
        runs = await begin(world, "lock", "data", "--ttl", "5s", "--", "sh", "-c", script)
        pid = int(await until_there(grandchild))
        decides.cancel()
        code, _, err = await over(runs)
    assert code == 124
    assert "asking its command to end" in err
    assert "lock data was lost" in err
    assert not lives(pid)


async def test_a_process_that_was_started_after_the_list_was_read_is_killed(tmp_path: Path) -> None:
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-c", FORKS_LATE, str(tmp_path / "pid"), stdout=PIPE, stderr=PIPE
    )
    code, out, _ = await over(program)
    assert (code, out) == (0, "[]\n")
    assert not lives(int(text_of(tmp_path / "pid")))


async def test_a_signal_reaches_the_command_and_the_lock_is_given_back(
    world: World, tmp_path: Path
) -> None:
    there = tmp_path / "there"
    script = f"trap 'exit 9' TERM; echo x > {there}; while :; do sleep 0.05; done"
    runs = await begin(world, "lock", "data", "--", "sh", "-c", script)
    await until_there(there)
    runs.send_signal(signal.SIGTERM)
    assert (await over(runs))[0] == 9
    assert (await world.ask("GET", "/v1/locks"))["locks"] == []


async def test_a_signal_at_the_start_of_the_command_reaches_it(world: World) -> None:
    script = "trap 'exit 9' TERM; while :; do sleep 0.05; done"
    runs = await begin(world, "lock", "data", "--", "sh", "-c", script, program=STARTS_SLOWLY)
    assert (await over(runs))[0] == 9


async def test_a_client_that_is_stopped_while_it_waits_leaves_the_queue(world: World) -> None:
    await acquire(world, "other")
    waits = await begin(world, "lock", "data", "--", "true")
    while (await world.ask("GET", "/v1/locks/data"))["waiting"] == 0:
        await asyncio.sleep(0.02)
    waits.send_signal(signal.SIGTERM)
    assert (await over(waits))[0] == 128 + signal.SIGTERM
    assert (await world.ask("GET", "/v1/locks/data"))["waiting"] == 0


async def test_a_command_dies_with_its_killed_holder(world: World, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    script = f"echo $$ > {pid_file}; exec sleep 60"
    runs = await begin(world, "lock", "data", "--", "sh", "-c", script)
    pid = int(await until_there(pid_file))
    runs.kill()
    await over(runs)
    while lives(pid):
        await asyncio.sleep(0.02)


async def test_locks_lists_holders_and_waiting_clients(world: World) -> None:
    await acquire(world, "other")
    code, out, _ = await muster(world, "locks", "--no-headers")
    assert code == 0
    assert out.split()[0] == "data" and out.split()[-1] == "0"


async def test_wrong_use_is_explained(world: World) -> None:
    code, _, err = await muster(world, "lock", "data")
    assert code == 2 and "no command" in err
    code, _, err = await muster(world, "lock", "data", "--", "no-such-command")
    assert code == 127 and "no-such-command" in err


async def test_a_command_that_waited_longer_than_its_time_to_live_runs(world: World) -> None:
    await acquire(world, "other", ttl=60)
    words = ("lock", "data", "--ttl", "5s", "--wait", "1m", "--", "sh", "-c", "sleep 1; echo ran")
    waits = await begin(world, *words)
    while (await world.ask("GET", "/v1/locks/data"))["waiting"] == 0:
        await asyncio.sleep(0.02)
    await asyncio.sleep(6)
    await ask(world, "release", "other")
    code, out, err = await over(waits)
    assert (code, out) == (0, "ran\n"), err


async def test_a_lock_is_given_back_when_its_command_was_killed_by_the_own_clock(
    world: World, tmp_path: Path
) -> None:
    there = tmp_path / "there"
    script = f"echo x > {there}; exec sleep 20"
    runs = await begin(world, "lock", "data", "--ttl", "5s", "--", "sh", "-c", script)
    await until_there(there)
    runs.send_signal(signal.SIGSTOP)
    await asyncio.sleep(5)
    runs.send_signal(signal.SIGCONT)
    code, _, err = await over(runs)
    assert code == 124 and "no renewal was answered" in err
    assert (await world.ask("GET", "/v1/locks"))["locks"] == []
