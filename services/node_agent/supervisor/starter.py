"""The starter of the elements of a batch: a small process that starts one for each request.

Spawning a guard for each element costs more than everything else that the supervisor does for it.
The starter is a guard (`guard.c`) that stays and knows the command, its user and its streams. It
starts each element as a child of the supervisor, so all rules for children are the same. Without a
starter, for example because it was killed, elements are started as in `child.py`.

An element writes its pid to a pipe before it executes: without a pid it has not begun. Tests:
tests/integration/test_element_starter.py, test_short_elements.py.
"""

import contextlib
import os
import signal

from services.node_agent.supervisor import child
from services.node_agent.supervisor.order import Order

REQUESTS, PIDS = 4, 5
# The size of the buffer in guard.c. A pipe takes so many bytes as a whole.
REQUEST_MAX = 4096
PID_BYTES = 4
CHILDREN_BYTES = 4096


class Starter:
    """The starter of one attempt; `pid` is 0 while there is none."""

    def __init__(self, order: Order, ends: child.Ends) -> None:
        self._order = order
        self._ends = ends
        self._works = child.HAS_GUARD
        self._descriptors: list[int] = []
        self.pid = 0

    def start(self, variables: dict[bytes, bytes]) -> bool:
        """Request an element with these variables, at least one; False if that is not possible."""
        request = b"".join(b"%s=%s\0" % pair for pair in variables.items())
        if not 0 < len(request) <= REQUEST_MAX or not (self.pid or self._launch(variables)):
            return False
        try:
            os.write(self._requests, request)
        except OSError:  # it was killed
            self.close()
            return False
        return True

    def take_pid(self) -> int:
        """Return the pid of the element that was requested last, once; 0 if it has not begun."""
        try:
            return int.from_bytes(os.read(self._pids, PID_BYTES), "little")
        except BlockingIOError:
            return 0

    def is_alone(self) -> bool:
        """Return whether the supervisor has no other child.

        The kernel lists all children, because only this process reaps them.
        """
        return os.pread(self._children, CHILDREN_BYTES, 0).split() == [b"%d" % self.pid]

    def has_ended(self, pid: int) -> bool:
        """Note the end of a child of the supervisor; return whether it was the starter."""
        if pid != self.pid:
            return False
        self.pid = 0
        return True

    def close(self) -> None:
        """End the starter."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0
        self._close_descriptors()

    def _close_descriptors(self) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = []

    def _launch(self, variables: dict[bytes, bytes]) -> bool:
        """Start it; return whether that was possible."""
        self._close_descriptors()
        if self._works:
            self._works = False
            with contextlib.suppress(OSError):
                self._open(variables)
                self._works = True
        return self._works

    def _open(self, variables: dict[bytes, bytes]) -> None:
        """Start the process and open what is used with it. Raises OSError."""
        self._children = os.open(
            f"/proc/self/task/{os.getpid()}/children", os.O_RDONLY | os.O_CLOEXEC
        )
        self._descriptors.append(self._children)
        requests, self._requests = os.pipe2(os.O_CLOEXEC)
        self._descriptors.append(self._requests)
        self._pids, pids = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._descriptors.append(self._pids)
        try:
            self.pid = child.spawn_starter(self._order, [*self._ends, requests, pids], variables)
        finally:
            os.close(requests)
            os.close(pids)
