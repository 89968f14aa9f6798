"""The agent's end of the connection to a process that outlives the agent: no call on it waits.

The memory broker or a weight server may hang. A call that waited for it would stop the agent's
event loop, and with it the heartbeat of the node. So messages that the process does not read yet
stay in a queue. The owner of the link kills a process that answers no ping for ANSWER_S, which ends
the link and its queue. Tests: tests/integration/test_hung_siblings.py.
"""

import asyncio
import os
import signal
import socket
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from libs.job.memory.broker_wire import MESSAGE_BYTES_MAX, Link, packed
from services.node_agent.memory.peers import peer_of

# The agent pings the process every PING_S. It kills a process that says nothing between so many
# pings: a driver's call or a large host grant may keep it busy for a while. Pings are counted, not
# seconds, so that a pause of the agent does not count. This also bounds the queue.
PING_S: Final = 10.0
PINGS_MAX: Final = 12
ANSWER_S: Final = PINGS_MAX * PING_S


class ControlLink:
    """A connection to the control socket of a process."""

    def __init__(self, folder: Path, name: str, most: int = MESSAGE_BYTES_MAX) -> None:
        """Connect. Raises OSError if no process accepts connections at this socket."""
        self.link = Link(_connected(folder, name), accepts=True, most=most)
        self.waiting: deque[tuple[memoryview, int]] = deque()
        # Pings since the last message from the process. The reader of the link sets it to 0.
        self.unanswered = 0
        self._pidfd = -1
        holder, _ = peer_of(self.link.stream)
        if holder is not None:
            with suppress(OSError):
                self._pidfd = os.pidfd_open(holder.pid)

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
            # Half of the messages would be worse than none. The reader of the link sees its end.
            self.waiting.clear()
            with suppress(OSError):
                self.link.stream.shutdown(socket.SHUT_RDWR)
        loop.remove_writer(self.fileno())


def _connected(folder: Path, name: str) -> socket.socket:
    """Return a connected socket that never waits."""
    opened = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    stream = socket.socket(socket.AF_UNIX)
    stream.setblocking(False)
    try:  # a socket path has at most 107 bytes
        stream.connect(f"/proc/self/fd/{opened}/{name}")
    except OSError:
        stream.close()
        raise
    finally:
        os.close(opened)
    return stream
