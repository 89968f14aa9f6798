"""The zygote's supervisors: forked ahead of orders, given one attempt at a time, and kept for the
next.

A supervisor that ends is replaced: it was killed, or it doubts its own state (`serving.py`). When
the zygote ends, waiting supervisors end too. Tests: tests/integration/test_supervision_reuse.py.
"""

import contextlib
import os
import socket
from collections.abc import Callable
from typing import NamedTuple

from services.node_agent.machine import cgroups, processes
from services.node_agent.machine.poll_loop import READ, PollLoop
from services.node_agent.supervisor import serving

# Forked ahead, so that no order waits for a fork.
AHEAD = 2
# Kept while orders come; each costs about a megabyte.
WAITING_MAX = 16
QUIET_NS = 10_000_000_000


class SupervisorHandle(NamedTuple):
    pid: int
    start_ticks: int
    orders: socket.socket


class Pool:
    """The supervisors of one zygote.

    `leave` closes the zygote's descriptors in the forked process. `home`: see `cgroups.Home.dirs`.
    """

    def __init__(self, loop: PollLoop, leave: Callable[[], None], home: dict[str, str]) -> None:
        self._loop = loop
        self._home = home
        self._leave = leave
        self._living: dict[int, SupervisorHandle] = {}
        self._waiting: list[SupervisorHandle] = []
        self._ended: list[SupervisorHandle] = []

    def pids(self) -> list[int]:
        return list(self._living)

    def fill(self) -> None:
        """Fork supervisors ahead. Raises OSError if the machine has no room for another process."""
        while len(self._waiting) < AHEAD:
            self._waiting.append(self._fork())

    def shrink(self) -> None:
        """Keep only those ahead, after a time without orders."""
        for supervisor in self._waiting[AHEAD:]:
            self._let_go(supervisor)

    def send(self, frame: bytes) -> SupervisorHandle:
        """Send an order to the supervisor that came back last, whose memory is warm; return it.

        Raises OSError if there is none and none could be forked.
        """
        while True:
            supervisor = self._waiting.pop() if self._waiting else self._fork()
            try:
                supervisor.orders.sendall(frame)
            except ConnectionError:  # killed while it waited
                self.forget(supervisor.pid)
                continue
            return supervisor

    def forget(self, pid: int) -> bool:
        """Forget a supervisor that ended; return whether it was one of these."""
        supervisor = self._living.pop(pid, None)
        if supervisor is None:
            return False
        self._loop.unwatch(supervisor.orders.fileno())
        supervisor.orders.close()
        self._waiting = [waiting for waiting in self._waiting if waiting.pid != pid]
        self._ended.append(supervisor)
        return True

    def remove_groups(self) -> None:
        """Remove the control groups of supervisors that have ended.

        A group with processes stays until the next agent cleans up (`cgroups.prepare`).
        """
        while self._ended:
            ended = self._ended.pop()
            cgroups.remove(self._home, cgroups.name_of(ended.pid, ended.start_ticks))

    def _note_message(self, supervisor: SupervisorHandle) -> None:
        """Note that a supervisor waits again, or has ended. Above the bound it is let go."""
        try:
            message = supervisor.orders.recv(len(serving.WAITING))
        except ConnectionError:
            message = b""
        if message and len(self._waiting) < WAITING_MAX:
            self._waiting.append(supervisor)
        else:
            self._let_go(supervisor)

    def _let_go(self, supervisor: SupervisorHandle) -> None:
        self._waiting = [waiting for waiting in self._waiting if waiting is not supervisor]
        self._loop.unwatch(supervisor.orders.fileno())
        with contextlib.suppress(OSError):
            supervisor.orders.shutdown(socket.SHUT_RDWR)

    def _fork(self) -> SupervisorHandle:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                pid = os.fork()
            except OSError:
                ours.close()
                raise
            if pid == 0:
                self._leave()
                for descriptor in (
                    ours.detach(),
                    *(supervisor.orders.detach() for supervisor in self._living.values()),
                ):
                    if descriptor >= 0:
                        os.close(descriptor)
                serving.serve(theirs.detach(), self._home)
        found = processes.process(pid)
        supervisor = SupervisorHandle(pid, found.start_ticks if found else 0, ours)
        self._living[pid] = supervisor
        self._loop.watch(ours.fileno(), READ, lambda: self._note_message(supervisor))
        return supervisor
