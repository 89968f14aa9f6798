"""The agent's end of the connection to a process that outlives the agent: no call on it waits.

The memory broker or a weight server may hang. A call that waited for it would stop the agent's
event loop, and with it the heartbeat of the node. So messages that the process does not read yet
stay in a queue. The owner of the link kills a process that answers no ping for ANSWER_S, which ends
the link and its queue. Tests: tests/integration/test_hung_siblings.py,
tests/integration/test_siblings_without_descriptors.py.
"""

import asyncio
import errno
import logging
import os
import signal
import socket
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from libs.job.memory.broker_wire import MESSAGE_BYTES_MAX, Link, packed
from services.node_agent.machine import processes
from services.node_agent.memory.peers import peer_of

# The agent pings the process every PING_S. It kills a process that sends nothing during PINGS_MAX
# pings. A driver call or a large host grant may keep a healthy process busy for a while. Pings are
# counted, not seconds, so that a pause of the agent does not count. This also bounds the queue.
PING_S: Final = 10.0
PINGS_MAX: Final = 12
ANSWER_S: Final = PINGS_MAX * PING_S
# How long `find` waits after an error of the agent itself, for example a lack of descriptors.
FIND_AGAIN_S: Final = 0.2
# How often `find` logs an error that stays the same.
WARN_AGAIN_S: Final = 60.0
# Errors of an agent that has no descriptor or memory left. They end when it has some again.
EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)

logger = logging.getLogger(__name__)


class ControlLink:
    """A connection to the control socket of a process."""

    def __init__(self, folder: Path, name: str, most: int = MESSAGE_BYTES_MAX) -> None:
        """Connect. Raises OSError.

        ConnectionRefusedError and FileNotFoundError mean that no process listens. BlockingIOError
        means that the process does not accept connections. Other errors say nothing about it.
        """
        self.link = Link(_connected(folder, name), accepts=True, most=most)
        self.waiting: deque[tuple[memoryview, int]] = deque()
        # Pings since the last message from the process. The reader of the link sets it to 0.
        self.unanswered = 0
        try:
            self._pidfd = _pidfd_of(self.link.stream)
        except OSError:
            self.link.close()
            raise

    def fileno(self) -> int:
        return self.link.stream.fileno()

    def send(self, message: dict[str, Any], descriptor: int = -1) -> None:
        """Send a message as soon as the process reads it.

        The caller keeps the descriptor open until the process has it or the link is closed.
        """
        self.waiting.append((memoryview(packed(message)), descriptor))
        if len(self.waiting) == 1:
            self._write()

    def ping(self, message: dict[str, Any]) -> bool:
        """Send a message that must be answered; return False if too many are unanswered."""
        self.unanswered += 1
        if self.unanswered > PINGS_MAX:
            return False
        self.send(message)
        return True

    def kill(self) -> None:
        """Kill the process at the other end."""
        with suppress(OSError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def close(self) -> None:
        """Close the connection; the process lives on."""
        self.waiting.clear()
        asyncio.get_running_loop().remove_writer(self.fileno())
        self.link.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    def _write(self) -> None:
        """Write what the process can take now, and the rest when it reads."""
        loop = asyncio.get_running_loop()
        try:
            while self.waiting:
                data, descriptor = self.waiting[0]
                if descriptor >= 0:
                    sent = socket.send_fds(self.link.stream, [data], [descriptor])
                else:
                    sent = self.link.stream.send(data)
                self.waiting[0] = (data[sent:], -1)
                if sent == len(data):
                    self.waiting.popleft()
        except BlockingIOError:
            loop.add_writer(self.fileno(), self._write)
            return
        except OSError:
            # After a lost message the process must not get later ones, so the connection ends.
            # `_read` of the owner then starts the next process.
            self.waiting.clear()
            with suppress(OSError):
                self.link.stream.shutdown(socket.SHUT_RDWR)
        loop.remove_writer(self.fileno())


async def find(folder: Path, name: str, most: int = MESSAGE_BYTES_MAX) -> ControlLink | None:
    """Connect to the process at this socket; return None if no process accepts connections.

    Another error may not replace a process that works, so this function then tries again.
    """
    loop, said, again_s = asyncio.get_running_loop(), "", 0.0
    while True:
        try:
            return ControlLink(folder, name, most)
        except (ConnectionRefusedError, FileNotFoundError):
            return None
        except BlockingIOError:
            logger.error(
                "the process at %s/%s accepts no connection: another one replaces it; if it does "
                "not end, kill it",
                *(folder, name),
            )
            return None
        except OSError as error:
            if said != str(error) or loop.time() >= again_s:
                said, again_s = str(error), loop.time() + WARN_AGAIN_S
                logger.warning(
                    "the agent cannot connect to %s/%s (%s) and tries again; %s",
                    *(folder, name, error, _remedy(error)),
                )
            await asyncio.sleep(FIND_AGAIN_S)


def _remedy(error: OSError) -> str:
    """Return what an administrator can do about an error of `find`."""
    if error.errno in EXHAUSTED:
        return "if this lasts, raise the agent's limit of open files, or free memory of the machine"
    return (
        "give the agent's user access to this socket and to its process; or cancel the jobs that "
        "use the process, end it, and remove the socket"
    )


def _pidfd_of(stream: socket.socket) -> int:
    """Return a descriptor of the process at the other end, -1 if it is gone. Raises OSError."""
    holder, _ = peer_of(stream)
    if holder is None:
        return -1
    try:
        pidfd = os.pidfd_open(holder.pid)
    except ProcessLookupError:
        return -1
    try:  # another process may have got the pid before it was opened
        if processes.is_living(*holder):
            return pidfd
    except OSError:
        os.close(pidfd)
        raise
    os.close(pidfd)
    return -1


def _connected(folder: Path, name: str) -> socket.socket:
    """Return a connected socket that never waits."""
    stream = socket.socket(socket.AF_UNIX)
    try:
        stream.setblocking(False)
        opened = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:  # a socket path has at most 107 bytes
            stream.connect(f"/proc/self/fd/{opened}/{name}")
        finally:
            os.close(opened)
    except OSError:
        stream.close()
        raise
    return stream
