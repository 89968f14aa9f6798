"""Finds processes by their environment, without waiting for ever for one that hangs.

A read of /proc/PID/environ waits for that process's memory lock. A process that hangs in a driver's
mmap(2) holds that lock. So the reads run in daemon threads, and nothing waits for such a thread to
end. A process whose environment cannot be read in time counts as one without the variable; its
control group, its parents and its open devices still show whose it is. Tests:
tests/integration/test_environments.py.
"""

import threading
from collections.abc import Sequence
from typing import Final

from services.node_agent.machine import processes

PROC: Final = "/proc"
# One process may take this long. The next look skips it for as long as its read lasts.
READ_S: Final = 1.0
# Threads that wait for a hanging process. With so many, no further environment is read.
HANGING_MAX: Final = 32

_lock = threading.Lock()
# The processes whose reads hang.
_hanging: set[int] = set()


class _Reading(threading.Thread):
    """Reads the environments of processes in order. `at` is the place of the next one.

    After `given_up` it ends with the process that it reads.
    """

    def __init__(self, pids: Sequence[int], pair: bytes, proc: str) -> None:
        super().__init__(name="environments", daemon=True)
        self.pids, self.pair, self.proc = pids, pair, proc
        self.found: list[int] = []
        self.at = 0
        self.given_up = False
        self.done = threading.Event()

    def run(self) -> None:
        for pid in self.pids:
            holds = processes.environment_holds(pid, [self.pair], self.proc)
            with _lock:
                if self.given_up:
                    _hanging.discard(pid)
                    return
                self.at += 1
                if holds:
                    self.found.append(pid)
        self.done.set()


def holding(
    pair: bytes, pids: Sequence[int], proc: str = PROC, within_s: float = READ_S
) -> list[int]:
    """Return the processes that were started with this NAME=value pair. Blocks.

    A process that hangs is waited for once, for at most twice `within_s`.
    """
    found: list[int] = []
    with _lock:
        waiting = [pid for pid in pids if pid not in _hanging]
        full = len(_hanging) >= HANGING_MAX
    while waiting and not full:
        reading = _Reading(waiting, pair, proc)
        reading.start()
        before = -1
        while not reading.done.wait(within_s) and reading.at != before:
            before = reading.at
        with _lock:
            found += reading.found
            hangs = waiting[reading.at :]
            if hangs:
                reading.given_up = True
                _hanging.add(hangs[0])
            waiting = hangs[1:]
            full = len(_hanging) >= HANGING_MAX
    return found
