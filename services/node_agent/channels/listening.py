"""Whose a TCP port of this machine is: a job's port is forwarded only when nobody but the job would
answer there.

/proc/net/tcp says which sockets listen, /proc/PID/fd whose they are. A process whose descriptors
may not be read owns nothing here.
"""

import contextlib
import os
from collections.abc import Iterable
from typing import Final

TABLES: Final = ("/proc/net/tcp", "/proc/net/tcp6")
LISTEN: Final = "0A"
# What a connection to 127.0.0.1 may reach, as the tables write it: 127.0.0.1 itself and every
# address, of both families.
REACHED: Final = (
    "0100007F",
    "00000000",
    "0" * 32,
    "0000000000000000FFFF00000100007F",
    "0000000000000000FFFF000000000000",
)


def is_listened_on_by(pids: Iterable[int], port: int) -> bool:
    """True when there is a listener behind 127.0.0.1:`port`, and all of them are these processes'.

    Reads many small files: not for the event loop's thread.
    """
    wanted = {f"socket:[{inode}]" for inode in _listeners(port)}
    for pid in pids if wanted else ():
        wanted -= _descriptors(pid)
        if not wanted:
            return True
    return False


def _listeners(port: int) -> list[str]:
    """Inodes of the sockets."""
    found = []
    for table in TABLES:
        with contextlib.suppress(FileNotFoundError), open(table) as lines:
            for line in lines:
                fields = line.split()
                address, _, number = fields[1].partition(":")
                if fields[3] == LISTEN and address in REACHED and int(number, 16) == port:
                    found.append(fields[9])
    return found


def _descriptors(pid: int) -> set[str]:
    found = set()
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                found.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    return found
