"""Tests whether a TCP port of this machine is free.

Tests: tests/integration/test_probe.py.
"""

import socket


def is_free(port: int) -> bool:
    """Return whether no process listens on the port, on any address of this machine.

    Another server would answer the replica's probes.
    """
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # closing sockets do not count
        try:
            tried.bind(("", port))
        except OSError:
            return False
    return True
