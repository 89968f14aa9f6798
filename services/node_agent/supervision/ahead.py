"""Supervisors that the zygote forks before there is anything to supervise; each waits for one order and ends with the zygote.

A killed one costs nothing: it is passed over. One that is killed with the order in its hands is like any killed supervisor.
Tests: tests/integration/test_supervision_ahead.py.
"""

import json
import os
import socket
from collections.abc import Callable
from typing import NamedTuple, NoReturn

from services.node_agent.supervision import processes, supervisor
from services.node_agent.supervision.order import FRAME_PREFIX_BYTES

# More would help bursts only, and each costs 0.8 MB of its own.
WAITING = 2
READ_BYTES = 64 * 1024


class Waiting(NamedTuple):
    pid: int
    start_ticks: int
    orders: socket.socket


class Ahead:
    """`leave` closes, in the forked process, what is the zygote's."""

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave = leave
        self._waiting: list[Waiting] = []

    def pids(self) -> set[int]:
        return {waiting.pid for waiting in self._waiting}

    def fill(self) -> None:
        """Raises OSError when the machine has no room for another process."""
        while len(self._waiting) < WAITING:
            self._waiting.append(self._fork())

    def send(self, frame: bytes) -> Waiting:
        """The one that took the order. Raises OSError when none is left and none could be forked."""
        while True:
            waiting = self._waiting.pop(0) if self._waiting else self._fork()
            try:
                with waiting.orders:
                    waiting.orders.sendall(frame)
            except ConnectionError:  # killed while it waited
                continue
            return waiting

    def forget(self, ended: set[int]) -> None:
        for waiting in self._waiting:
            if waiting.pid in ended:
                waiting.orders.close()
        self._waiting = [waiting for waiting in self._waiting if waiting.pid not in ended]

    def _fork(self) -> Waiting:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                pid = os.fork()
            except OSError:
                ours.close()
                raise
            if pid == 0:
                self._leave()
                for descriptor in (ours.detach(), *(waiting.orders.detach() for waiting in self._waiting)):
                    os.close(descriptor)
                _wait(theirs.detach())
        found = processes.process(pid)
        return Waiting(pid, found.start_ticks if found else 0, ours)


def _wait(descriptor: int) -> NoReturn:
    """End of file before the whole order: the zygote is gone."""
    frame, size = b"", FRAME_PREFIX_BYTES
    while len(frame) < size:
        part = os.read(descriptor, READ_BYTES)
        if not part:
            os._exit(0)
        frame += part
        if len(frame) >= FRAME_PREFIX_BYTES:
            size = FRAME_PREFIX_BYTES + int.from_bytes(frame[:FRAME_PREFIX_BYTES], "big")
    os.close(descriptor)
    supervisor.supervise(json.loads(frame[FRAME_PREFIX_BYTES:]))
