"""The processes of supervisors: one descriptor for each, kept for all attempts that it serves.

A descriptor stays with its process, so a pid that is used again is never mistaken for it. Tests:
tests/integration/test_supervision_agent.py, test_supervision_reuse.py.
"""

import asyncio
import os
from collections.abc import Callable
from typing import NamedTuple

from services.node_agent.machine import processes


class _Watched(NamedTuple):
    start_ticks: int
    pidfd: int


class SupervisorProcesses:
    """The living supervisors that an order of this agent went to.

    `gone` is called with the pid of one that has ended.
    """

    def __init__(self, gone: Callable[[int], None]) -> None:
        self._gone = gone
        self._loop = asyncio.get_running_loop()
        self._watched: dict[int, _Watched] = {}

    def watch(self, pid: int, start_ticks: int) -> int:
        """Return a descriptor of the process, which stays this object's; -1 if it has ended."""
        found = self._watched.get(pid)
        if found is not None and found.start_ticks == start_ticks:
            return found.pidfd
        self._drop(pid)
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return -1
        is_living = False
        try:
            is_living = processes.is_living(pid, start_ticks)
        finally:
            if not is_living:
                os.close(pidfd)
        if not is_living:
            return -1
        self._watched[pid] = _Watched(start_ticks, pidfd)
        self._loop.add_reader(pidfd, self._ended, pid)
        return pidfd

    def close(self) -> None:
        for pid in list(self._watched):
            self._drop(pid)

    def _ended(self, pid: int) -> None:
        self._drop(pid)
        self._gone(pid)

    def _drop(self, pid: int) -> None:
        found = self._watched.pop(pid, None)
        if found is not None:
            self._loop.remove_reader(found.pidfd)
            os.close(found.pidfd)
