"""The part of an attempt's directory that belongs to the job's own user: what it brought along, and
what it says to the agent.

The directory itself stays the agent's, and so does all that proves how the job ended: the owner of
a directory can exchange what is in it. Nothing is given before all of it is ready, and the way in
opens last. Tests: tests/integration/test_job_users.py, tests/attack/test_folder_walk.py.
"""

import contextlib
import os
import stat
from pathlib import Path
from typing import Final

from libs.common.safety.folder_walk import FOLDER, entered, give_file, give_tree
from services.node_agent.directories.accounts import Account
from services.node_agent.directories.unpacking import FILES

OWN: Final = "own"
# A user that knows the name of an entry may pass; only the owner may list.
PASSABLE: Final = 0o711
# A job on simulated devices may write there how many seconds it has kept them busy
# (docs/howto/simulated-devices.md).
DEVICE_SECONDS: Final = "device-seconds"
# The kernel's user id for users that have no number.
OVERFLOW: Final = 65_534


def give(jobs_dir: Path, job_dir: str, account: Account) -> None:
    """Give the job its part of the directory, before it begins.

    Raises OSError; then no other user can enter the directory.
    """
    with contextlib.suppress(FileExistsError):
        os.makedirs(job_dir, mode=0o700)
    folder = os.open(job_dir, FOLDER)
    try:
        os.fchmod(folder, 0o700)
        with contextlib.suppress(FileNotFoundError):
            give_tree(folder, FILES, account.uid, account.gid)
        _make_own(folder, account)
        _make_file(folder, DEVICE_SECONDS, account)
        for path in (jobs_dir.parent, jobs_dir):
            make_passable(path)
        os.fchmod(folder, PASSABLE)
    finally:
        os.close(folder)


def is_passable(state_dir: Path) -> bool:
    """Return whether users without a name on this machine can pass to a node's state directory."""
    return all(stat.S_IMODE(os.stat(folder).st_mode) & 0o001 for folder in state_dir.parents)


def make_passable(path: str | Path) -> None:
    """One of the agent's own folders. Raises OSError, also for a link."""
    folder = os.open(path, FOLDER)
    try:
        os.fchmod(folder, stat.S_IMODE(os.fstat(folder).st_mode) & ~0o066 | PASSABLE)
    finally:
        os.close(folder)


def _make_own(folder: int, account: Account) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(OWN, mode=0o700, dir_fd=folder)
    own = entered(OWN, folder)
    try:
        os.fchown(own, account.uid, account.gid)
    finally:
        os.close(own)


def _make_file(folder: int, name: str, account: Account) -> None:
    """Make an empty file, because the job can make none in a directory that is not its own."""
    os.close(
        os.open(name, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    )
    give_file(folder, name, account.uid, account.gid)


def unnoted() -> list[int]:
    """Return the user that reads the files of an attempt whose marker names no user.

    Older agents wrote such markers.

    For an agent that runs as root it is the system user `nobody`.
    """
    return [OVERFLOW, OVERFLOW] if os.geteuid() == 0 else []
