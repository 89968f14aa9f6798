"""The launcher of a state directory: its lock, and its processes in state/run.json.

From run.json a later launcher finds and ends the processes of one that was killed.
"""

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from libs.common.errors import Corrupt, Refused
from libs.embedded.identity import write_private
from libs.embedded.living import Ticket, is_living, ticket


class Run(msgspec.Struct, frozen=True):
    """The processes of one launcher. `ready`: the gateway has answered."""

    launcher: Ticket
    children: dict[str, Ticket] = {}
    ready: bool = False


def run_file(state: Path) -> Path:
    return state / "run.json"


def lock(state: Path) -> int:
    """Lock the directory. Return the descriptor that holds the lock until it is closed.

    Raises Refused with the pid of the process that holds it.
    """
    descriptor = os.open(state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
        os.close(descriptor)
        holding = f"pid {holder}" if holder else "just starting"
        raise Refused(
            f"{state} is in use by a running cluster ({holding}): stop it with "
            f"`muster down --state {state}`"
        ) from error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    return descriptor


def read(state: Path) -> Run | None:
    """Return the last run; None if there was none. Raises Corrupt if it cannot be decoded."""
    try:
        return msgspec.json.decode(run_file(state).read_bytes(), type=Run)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        path = run_file(state)
        raise Corrupt(
            f"{path} cannot be read ({error}): make sure that no muster process runs, then remove "
            "it"
        ) from error


def write(state: Path, children: Mapping[str, Ticket], ready: bool) -> None:
    own = ticket(os.getpid())
    assert own is not None
    write_private(run_file(state), msgspec.json.encode(Run(own, dict(children), ready)).decode())


def running(state: Path) -> Run | None:
    """Return the run whose launcher is alive, if any."""
    found = read(state)
    return found if found is not None and is_living(found.launcher) else None


def left_behind(state: Path) -> list[Ticket]:
    """Return the living processes of a launcher that has ended."""
    found = read(state)
    if found is None or is_living(found.launcher):
        return []
    return [each for each in found.children.values() if is_living(each)]


def remove(state: Path) -> None:
    run_file(state).unlink(missing_ok=True)
