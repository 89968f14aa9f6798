"""The zygote: the warm process that forks supervisors.

The agent runs it as `python -I -S zygote.py CGROUPS` with a stream socket as descriptor 0. CGROUPS
is `cgroups.Home.dirs` as JSON. Each frame on the socket is one order (`order.py`) and gets one
reply, in order. Supervisors are forked ahead and serve again (`pool.py`), so that hardly any order
waits for a fork. Jobs get the limit of open files that the agent had before it raised its own
(OPEN_FILES). The zygote survives bad orders and exits when the socket closes, that is when the
agent dies; supervisors live on. It is the next subreaper, and kills what a killed supervisor leaves
behind. Tests: tests/integration/test_supervision_agent.py.
"""

import contextlib
import gc
import json
import os
import resource
import signal
import socket
import sys
import time
from types import FrameType
from typing import Any

READ_BYTES = 64 * 1024
PACKAGE_DEPTH = 4
ORPHAN_SWEEPS = 100
ORPHAN_SWEEP_S = 0.01
# A garbage collection writes to every object's header: a forked supervisor would copy those pages.
GC_THRESHOLD = 50_000
# The variable that has the soft limit of open files.
OPEN_FILES = "OPEN_FILES"


def main() -> None:
    """Run as a script: put the project's root on the path before importing from it."""
    root = os.path.abspath(__file__)
    for _ in range(PACKAGE_DEPTH):
        root = os.path.dirname(root)
    sys.path.insert(0, root)
    from services.node_agent.machine import processes

    _reset_signals()
    _limit_files()
    os.chdir("/")
    processes.prctl(processes.PR_SET_CHILD_SUBREAPER, 1)
    processes.prctl(
        processes.PR_SET_DUMPABLE, 0
    )  # jobs of the agent's own user cannot trace it, nor its supervisors
    zygote = Zygote(socket.socket(fileno=os.dup(0)), json.loads(sys.argv[1]))
    processes.boot_id()
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
    zygote.run()


class Zygote:
    def __init__(self, agent: socket.socket, home: dict[str, str]) -> None:
        from services.node_agent.machine import poll_loop, processes
        from services.node_agent.supervisor import order, pool

        self._orders, self._processes = order, processes
        self._agent = agent
        self._buffer = bytearray()
        self._skip_bytes = 0
        self._wakeups, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        self._loop = poll_loop.PollLoop()
        self._pool = pool.Pool(self._loop, self._leave, home)
        self._quiet_ns = pool.QUIET_NS
        self._loop.watch(self._wakeups, poll_loop.READ, self._reap)
        self._loop.watch(agent.fileno(), poll_loop.READ, self._receive)

    def run(self) -> None:
        """Serve until the agent is gone."""
        while True:
            with contextlib.suppress(OSError):  # the next order reports the reason
                self._pool.fill()
            if not self._loop.run_once(self._quiet_ns):
                self._pool.shrink()

    def _receive(self) -> None:
        try:
            data = self._agent.recv(READ_BYTES)
        except ConnectionError:
            data = b""
        if not data:
            os._exit(0)
        self._buffer += data
        while (frame := self._next_frame()) is not None:
            self._reply(self._start(frame))

    def _next_frame(self) -> bytes | None:
        """Return the next frame. One above the bound is skipped and answered like an empty one."""
        skipped = min(self._skip_bytes, len(self._buffer))
        del self._buffer[:skipped]
        self._skip_bytes -= skipped
        prefix = self._orders.FRAME_PREFIX_BYTES
        if self._skip_bytes or len(self._buffer) < prefix:
            return None
        size = int.from_bytes(self._buffer[:prefix], "big")
        if size > self._orders.MAX_FRAME_BYTES:
            self._skip_bytes = size
            del self._buffer[:prefix]
            return b""
        if len(self._buffer) < prefix + size:
            return None
        frame = bytes(self._buffer[prefix : prefix + size])
        del self._buffer[: prefix + size]
        return frame

    def _start(self, frame: bytes) -> dict[str, Any]:
        try:
            order = self._orders.parse(frame)
            supervisor = self._pool.send(self._orders.framed(frame))
        except ValueError as error:
            return {"error": str(error)}
        except OSError as error:
            return {"error": f"no supervisor could be forked: {error}"}
        return {
            "job_id": order["job_id"],
            "attempt": order["attempt"],
            "supervisor_pid": supervisor.pid,
            "start_ticks": supervisor.start_ticks,
        }

    def _reply(self, message: dict[str, Any]) -> None:
        try:
            self._agent.sendall(self._orders.frame_of(message))
        except ConnectionError:
            os._exit(0)

    def _leave(self) -> None:
        """Close the zygote's descriptors in a forked supervisor."""
        signal.set_wakeup_fd(-1)
        for descriptor in (self._agent.detach(), self._wakeups, self._wake):
            os.close(descriptor)

    def _reap(self) -> None:
        if signal.SIGTERM in os.read(self._wakeups, READ_BYTES):
            os._exit(0)
        if self._wait():
            self._kill_orphans()
            self._pool.remove_groups()

    def _wait(self) -> int:
        """Reap supervisors and return how many have ended."""
        ended = 0
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return ended
            if pid == 0:
                return ended
            ended += self._pool.forget(pid)

    def _kill_orphans(self) -> None:
        """Kill what killed supervisors left behind. One that ended by itself leaves nothing."""
        for _ in range(ORPHAN_SWEEPS):
            if not self._processes.kill_below(os.getpid(), self._pool.pids()):
                return
            time.sleep(ORPHAN_SWEEP_S)
            self._wait()


def _reset_signals() -> None:
    """Reset signals that the agent's parents ignored or blocked, so that jobs do not inherit that.

    Handlers replace ignored signals, because exec resets handlers. Supervisors inherit them.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, _noted)


def _limit_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = int(os.environ.get(OPEN_FILES, soft))
    if wanted != soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _noted(number: int, frame: FrameType | None) -> None:
    """Do nothing: the wake-up descriptor wakes the loop."""


if __name__ == "__main__":
    main()
