"""Datagrams from a supervisor to its agent. Tests: tests/integration/test_supervision_agent.py."""

import json
import os
import socket
from typing import Any

# The room in a socket address.
ADDRESS_BYTES = 107


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
