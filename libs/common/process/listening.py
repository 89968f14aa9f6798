"""Tells whether given processes own all listeners of a TCP port of this machine.

/proc/net/tcp says which sockets listen. /proc/PID/fd says which process owns a socket. A process
whose descriptors cannot be read counts as owning no socket.
"""

import contextlib
import os
from collections.abc import Iterable
from typing import Final

TABLES: Final = ("/proc/net/tcp", "/proc/net/tcp6")
LISTEN: Final = "0A"
# Local addresses that accept connections to 127.0.0.1, as the tables write them: 127.0.0.1 itself
# and the address for all interfaces, in both families.
REACHED: Final = (
    "0100007F",
    "00000000",
    "0" * 32,
    "0000000000000000FFFF00000100007F",
    "0000000000000000FFFF000000000000",
)


def is_listened_on_by(pids: Iterable[int], port: int) -> bool:
    """Return whether 127.0.0.1:`port` has a listener and these processes own all of its listeners.

    The function reads many small files, so do not call it from the event loop's thread.
    """
    wanted = {f"socket:[{inode}]" for inode in _listeners(port)}
    for pid in pids if wanted else ():
        wanted -= _descriptors(pid)
        if not wanted:
            return True
    return False


def _listeners(port: int) -> list[str]:
    """Return the inodes of the sockets that listen on the port."""
    inodes = []
    for table in TABLES:
        with contextlib.suppress(FileNotFoundError), open(table) as lines:
            for line in lines:
                fields = line.split()
                address, _, number = fields[1].partition(":")
                if fields[3] == LISTEN and address in REACHED and int(number, 16) == port:
                    inodes.append(fields[9])
    return inodes


def _descriptors(pid: int) -> set[str]:
    """Return the targets of the process's descriptors."""
    targets = set()
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                targets.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    return targets
