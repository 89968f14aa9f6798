"""What of an attempt's directory belongs to the job's own user: what it brought along, and what it says to the agent.

The directory itself stays the agent's, and so does all that proves how the job ended: whoever owns a directory can exchange what is in it.
Test: tests/integration/test_job_users.py.
"""

import contextlib
import os
import stat
from pathlib import Path
from typing import Final

from services.node_agent.accounts import Account
from services.node_agent.uploads import FILES

OWN: Final = "own"
# Whoever knows the name of what lies behind may go there; nobody may look around.
PASSABLE: Final = 0o711
# A job on simulated devices may write there how many seconds it has kept them busy (docs/howto/simulated-devices.md).
DEVICE_SECONDS: Final = "device-seconds"
# The kernel's own user for whom it has no number of.
OVERFLOW: Final = 65_534


def give(jobs_dir: Path, job_dir: str, account: Account) -> None:
    """Before the job begins. Raises OSError."""
    os.makedirs(job_dir, exist_ok=True)
    for path in (str(jobs_dir.parent), str(jobs_dir), job_dir):
        os.chmod(path, stat.S_IMODE(os.stat(path).st_mode) & ~0o066 | PASSABLE)
    with contextlib.suppress(FileExistsError):
        os.mkdir(f"{job_dir}/{OWN}", mode=0o700)
    os.chown(f"{job_dir}/{OWN}", account.uid, account.gid)
    _give_file(f"{job_dir}/{DEVICE_SECONDS}", account)
    for folder, _, files in os.walk(f"{job_dir}/{FILES}"):
        for path in (folder, *(f"{folder}/{file}" for file in files)):
            os.chown(path, account.uid, account.gid, follow_symlinks=False)


def _give_file(path: str, account: Account) -> None:
    """An empty one, because the job can make none in a directory that is not its own."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.fchown(descriptor, account.uid, account.gid)
    finally:
        os.close(descriptor)


def unnoted() -> list[int]:
    """As whom the files are read of an attempt whose marker does not say (one of an agent before this was noted): by root as nobody."""
    return [OVERFLOW, OVERFLOW] if os.geteuid() == 0 else []
