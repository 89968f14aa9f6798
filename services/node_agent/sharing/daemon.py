"""Starts, commands, finds and ends one MPS control daemon.

The agent moves a shell into the daemon's control group. The shell starts the daemon and exits. So
the daemon is not the agent's child and outlives it. The daemon and its servers are found by that
group, by descent, and by a mark in their environment. Tests: tests/integration/test_mps.py.
"""

import asyncio
import os
import signal
import stat
import subprocess  # nosec B404
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from libs.common.errors import Refused
from libs.common.model import GpuId
from libs.common.safety.folder_walk import remove_tree
from services.node_agent.directories.job_ownership import make_passable
from services.node_agent.machine import cgroups, environments, processes, synced_file
from services.node_agent.machine.processes import Process
from services.node_agent.sharing import ways

MARK: Final = "MUSTER_MPS"
SCRIPT: Final = 'read -r go; "$0" -f > "$1" 2>&1 < /dev/null & echo $!'
OUTPUT: Final = "output"
OUTPUT_BYTES_MAX: Final = 2_048
# The time limit of one command to a living daemon.
ASK_S: Final = 3.0
# The time limit of the shell that starts the daemon.
SHELL_S: Final = 5.0


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a daemon in its file.

    `pid` is 0 until the daemon has started. `ids`: see `supervisor.order.Order.account`.
    """

    uuids: tuple[GpuId, ...]
    tenant: str
    ids: list[int]
    pid: int = 0
    start_ticks: int = 0
    boot_id: str = ""
    group: str = ""


def keep(path: Path, known: Known) -> None:
    """Write the file of a daemon; return once it survives a power cut."""
    synced_file.replace(path, msgspec.json.encode(known))


def kept(path: Path) -> Known | None:
    """Return the record of a daemon; None if it cannot be read: then no daemon was started."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Known)
    except (OSError, msgspec.DecodeError):
        return None


def make_folders(folder: str, ids: list[int]) -> None:
    """Make empty folders that only the daemon's user may use. Raises OSError."""
    remove_tree(folder)
    for path in (folder, ways.pipes(folder), ways.logs(folder)):
        os.mkdir(path, mode=0o700)
    for path in (ways.pipes(folder), ways.logs(folder), folder) if ids else ():
        os.chown(path, ids[0], ids[1], follow_symlinks=False)
    if ids:
        for path in (os.path.dirname(folder), os.path.dirname(os.path.dirname(folder))):
            make_passable(path)


def begin(program: str, folder: str, known: Known, home: Mapping[str, str]) -> Known:
    """Start the daemon and return its record. Blocks. Raises OSError.

    Call `ask` to learn when the daemon answers.
    """
    as_user = (
        {"user": known.ids[0], "group": known.ids[1], "extra_groups": known.ids[2:]}
        if known.ids
        else {}
    )
    line = ["/bin/sh", "-c", SCRIPT, program, f"{folder}/{OUTPUT}"]
    with subprocess.Popen(  # type: ignore[call-overload]  # nosec B603
        line,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env=environment(folder, known),
        start_new_session=True,
        **as_user,
    ) as shell:
        group = cgroups.take_in(home, os.path.basename(folder), shell.pid)
        try:
            printed, _ = shell.communicate(b"\n", timeout=SHELL_S)
        except subprocess.TimeoutExpired as error:
            shell.kill()
            raise OSError(0, f"{program} did not start within {SHELL_S:.0f} s") from error
    if not printed.strip().isdigit():
        raise OSError(0, f"{program} could not be started")
    seen = processes.process(int(printed))
    begun = msgspec.structs.replace(known, boot_id=processes.boot_id(), group=group)
    return (
        msgspec.structs.replace(begun, pid=seen.pid, start_ticks=seen.start_ticks)
        if seen is not None
        else begun
    )


def environment(folder: str, known: Known) -> dict[str, str]:
    path = os.environ.get("PATH", os.defpath)
    extra = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    return {
        "PATH": path,
        "HOME": folder,
        **extra,
        MARK: folder,
        **ways.daemon_variables(folder, known.uuids),
    }


async def ask(program: str, folder: str, known: Known, command: str) -> str:
    """Return the daemon's answer to a command. Raises Refused."""
    as_user = (
        {"user": known.ids[0], "group": known.ids[1], "extra_groups": known.ids[2:]}
        if known.ids
        else {}
    )
    plain = {name: value for name, value in environment(folder, known).items() if name != MARK}
    try:
        child = await asyncio.create_subprocess_exec(
            program,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd="/",
            env=plain,
            start_new_session=True,
            **as_user,  # type: ignore[arg-type]
        )
    except OSError as error:
        raise Refused(f"{program} cannot be run: {error}") from error
    try:
        async with asyncio.timeout(ASK_S):
            printed, _ = await child.communicate(f"{command}\n".encode())
    except TimeoutError:
        raise Refused(f"it did not answer {command!r} within {ASK_S:.0f} s") from None
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    text = printed[:OUTPUT_BYTES_MAX].decode(errors="replace").strip()
    if child.returncode:
        raise Refused(f"it refused {command!r}: {text or f'exit code {child.returncode}'}")
    return text


def is_living(known: Known) -> bool:
    return known.boot_id == processes.boot_id() and processes.is_living(
        known.pid, known.start_ticks
    )


def living_processes(folder: str, known: Known) -> list[Process]:
    """Return the living processes of the daemon and its servers.

    Reads the environment of every process, so it must not run on the event loop. A process whose
    environment cannot be read in time is none of them (`environments.py`).
    """
    mark = os.fsencode(f"{MARK}={folder}")
    below = processes.descendants(known.pid) if is_living(known) else []
    own = {*below, *cgroups.members(known.group)}
    own |= {*environments.holding(mark, [pid for pid in processes.all_pids() if pid not in own])}
    if is_living(known):
        own.add(known.pid)
    found = [processes.process(pid) for pid in sorted(own - {os.getpid()})]
    return [each for each in found if each is not None and each.state not in "ZX"]


def end_by_force(folder: str, known: Known) -> None:
    processes.send([each.pid for each in living_processes(folder, known)], signal.SIGKILL)


def last_words(folder: str) -> str:
    """Return the last line that the daemon printed. Its user may have written anything there."""
    try:
        descriptor = os.open(
            f"{folder}/{OUTPUT}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
        )
    except OSError:
        return ""
    try:
        status = os.fstat(descriptor)
        if (
            not stat.S_ISREG(status.st_mode) or status.st_nlink != 1
        ):  # the daemon's user could have put a link to a file of root here
            return ""
        lines = (
            os.pread(descriptor, OUTPUT_BYTES_MAX, max(0, status.st_size - OUTPUT_BYTES_MAX))
            .decode(errors="replace")
            .split("\n")
        )
    except OSError:
        return ""
    finally:
        os.close(descriptor)
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
