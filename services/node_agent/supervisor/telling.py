"""Datagrams from a supervisor to its agent: the start of the job, and its end.

Tests: tests/integration/test_supervision_agent.py, test_supervision_jobs.py.
"""

import json
import os
import socket
from typing import Any

from services.node_agent.supervisor.order import Order

# The room in a socket address.
ADDRESS_BYTES = 107
# A supervisor sends "started" once the job has run for this time. For a job that ends sooner it
# sends only "exited", and the agent records the start and the end together.
START_ALONE_NS = 20_000_000
# The wait for room in the agent's queue, for the end.
TELL_WAIT_S = 0.5


class Telling:
    """The datagrams about one attempt."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._start_due_ns: int | None = None

    def started(self, now_ns: int) -> None:
        """Note that the job executes."""
        self._start_due_ns = now_ns + START_ALONE_NS

    def sleep_ns(self, now_ns: int) -> int | None:
        """Return the time until the start must be told; None: it need not be."""
        return None if self._start_due_ns is None else max(0, self._start_due_ns - now_ns)

    def enforce(self, now_ns: int) -> None:
        """Tell the start if that is due."""
        if self._start_due_ns is not None and now_ns >= self._start_due_ns:
            self._start_due_ns = None
            self._tell("started")

    def ended(self) -> bool:
        """Tell the end, which includes the start; return whether a living agent was told."""
        return self._tell("exited", TELL_WAIT_S)

    def _tell(self, event: str, wait_s: float = 0.0) -> bool:
        order = self._order
        message = {"event": event, "job_id": order["job_id"], "attempt": order["attempt"]}
        return tell(order["agent_socket"], message, wait_s)


def tell(agent_socket: str, message: dict[str, Any], wait_s: float = 0.0) -> bool:
    """Send the agent one datagram; return whether it reached a living agent.

    The agent's queue holds few: `wait_s` is how long to wait for room.
    """
    data = json.dumps(message).encode()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            if len(os.fsencode(agent_socket)) <= ADDRESS_BYTES:
                sender.connect(agent_socket)
            else:
                _connect_far(sender, agent_socket)
            sender.settimeout(wait_s)
            sender.send(data)
    except OSError:
        return False
    return True


def _connect_far(sender: socket.socket, agent_socket: str) -> None:
    """Connect through the folder's descriptor if the address is too long."""
    folder, _, name = agent_socket.rpartition("/")
    descriptor = os.open(folder or "/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sender.connect(f"/proc/self/fd/{descriptor}/{name}")
    finally:
        os.close(descriptor)
