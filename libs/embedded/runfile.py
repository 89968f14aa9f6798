"""Who holds a state directory: the lock (one launcher) and state/run.json (its processes, so that
what a killed launcher left behind is found and ended).
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
    """`ready` turns true when the gateway answered."""

    launcher: Ticket
    children: dict[str, Ticket] = {}
    ready: bool = False


def run_file(state: Path) -> Path:
    return state / "run.json"


def lock(state: Path) -> int:
    """A descriptor that holds the directory until it is closed.

    Raises Refused naming the process that has it.
    """
    descriptor = os.open(state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
        os.close(descriptor)
        who = f"pid {holder}" if holder else "just starting"
        raise Refused(
            f"{state} is in use by a running cluster ({who}): `muster down` stops it"
        ) from error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    return descriptor


def read(state: Path) -> Run | None:
    """None when nothing was ever started here. Raises Corrupt for a file that is not ours."""
    try:
        return msgspec.json.decode(run_file(state).read_bytes(), type=Run)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        path = run_file(state)
        raise Corrupt(
            f"{path} cannot be read ({error}): see that no muster process runs, then remove it"
        ) from error


def write(state: Path, children: Mapping[str, Ticket], ready: bool) -> None:
    own = ticket(os.getpid())
    assert own is not None
    write_private(run_file(state), msgspec.json.encode(Run(own, dict(children), ready)).decode())


def running(state: Path) -> Run | None:
    """The run whose launcher lives, if any."""
    found = read(state)
    return found if found is not None and is_living(found.launcher) else None


def left_behind(state: Path) -> list[Ticket]:
    """Living processes of a launcher that is gone."""
    found = read(state)
    if found is None or is_living(found.launcher):
        return []
    return [each for each in found.children.values() if is_living(each)]


def remove(state: Path) -> None:
    run_file(state).unlink(missing_ok=True)
