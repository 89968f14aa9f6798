"""The processes that a command started, also those whose parents have ended.

Tests: tests/integration/test_cli_lock.py.
"""

import ctypes
import sys
from pathlib import Path
from typing import Final

PR_SET_CHILD_SUBREAPER: Final = 36
PROCESSES_MAX: Final = 65_536


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(pid: int) -> list[int]:
    """Return the children of a process, their children, and so on; none where there is no /proc."""
    children: dict[int, list[int]] = {}
    for path in list(Path("/proc").glob("[0-9]*/stat"))[:PROCESSES_MAX]:
        try:
            parent = int(path.read_bytes().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue  # the process has ended
        children.setdefault(parent, []).append(int(path.parent.name))
    found, waiting = [], [pid]
    while waiting:
        own = children.pop(waiting.pop(), [])
        found += own
        waiting += own
    return found
