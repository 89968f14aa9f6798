"""Gives a job's user its part of the attempt's directory: the upload, and files for the agent.

The directory itself stays the agent's, and so do the records of how the job ended, because the
owner of a directory can replace what is in it. The directory opens to the user last, when all of
the user's part is ready. Tests: tests/integration/test_job_users.py,
tests/attack/test_folder_walk.py.
"""

import contextlib
import math
import os
import stat
import time
from pathlib import Path
from typing import Final

from libs.common.safety.folder_walk import FOLDER, entered, give_file, give_tree
from services.node_agent.directories.accounts import Account
from services.node_agent.directories.unpacking import FILES

OWN: Final = "own"
# Copies of compile products that a replica may use and change (`resident/`).
CACHE: Final = "cache"
# Any user may enter a folder of this mode; only the owner may list it.
PASSABLE: Final = 0o711
# A job on simulated devices may write to this file how many seconds it has kept them busy
# (docs/howto/simulated-devices.md).
DEVICE_SECONDS: Final = "device-seconds"
DEVICE_SECONDS_BYTES: Final = 32
# The kernel's user id for users that have no number.
OVERFLOW: Final = 65_534


def give(jobs_dir: Path, job_dir: str, account: Account) -> None:
    """Give the job's user its part of the directory, before the job starts.

    Raises OSError; then no other user can enter the directory.
    """
    with contextlib.suppress(FileExistsError):
        os.makedirs(job_dir, mode=0o700)
    folder = os.open(job_dir, FOLDER)
    try:
        os.fchmod(folder, 0o700)
        for name in (FILES, CACHE):
            with contextlib.suppress(FileNotFoundError):
                give_tree(folder, name, account.uid, account.gid)
        _make_own(folder, account)
        _make_file(folder, DEVICE_SECONDS, account)
        for path in (jobs_dir.parent, jobs_dir):
            make_passable(path)
        os.fchmod(folder, PASSABLE)
    finally:
        os.close(folder)


def is_passable(state_dir: Path) -> bool:
    """Return whether any user of this machine can reach the state directory."""
    return all(stat.S_IMODE(os.stat(folder).st_mode) & 0o001 for folder in state_dir.parents)


def make_passable(path: str | Path) -> None:
    """Let any user enter one of the agent's folders. Raises OSError, also for a link."""
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
    """Create an empty file for the user, who cannot create one in the agent's directory."""
    os.close(
        os.open(name, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    )
    give_file(folder, name, account.uid, account.gid)


def unnoted() -> list[int]:
    """Return the ids under which to read files of an attempt whose marker names no user.

    Older agents wrote such markers. An agent that is root uses the kernel's overflow id; other
    agents use their own user.
    """
    return [OVERFLOW, OVERFLOW] if os.geteuid() == 0 else []


def device_seconds(job_dir: str) -> float | None:
    """Return the device seconds that a job reports for simulated devices; None if it reports no
    number.

    The file may hold anything. `70%` means busy for that part of all time.
    """
    try:
        descriptor = os.open(
            f"{job_dir}/{DEVICE_SECONDS}",
            os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW,
        )
        try:
            text = os.read(descriptor, DEVICE_SECONDS_BYTES).strip()
            seconds = (
                float(text.removesuffix(b"%")) / 100 * time.monotonic()
                if text.endswith(b"%")
                else float(text)
            )
        finally:
            os.close(descriptor)
    except (OSError, ValueError):
        return None
    return seconds if math.isfinite(seconds) else None
