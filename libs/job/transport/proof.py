"""The end of RDMA's handshake: the dialler has proved that there is a path, and the listener knows.

Each side says in its queue pair's address whether it speaks this part of the handshake, so that a
side without this part opens links as before. Tests:
tests/integration/test_link_fallback.py, and tests/contract/test_transport.py in the guest of
`make rdma`.
"""

import socket
from typing import Any, Final

from libs.job.transport.errors import Cause, WireFault

# The dialler proves within this time that bytes reach the peer over verbs, and says so to the
# listener with one byte. The listener waits a little longer, and answers with the same byte.
PROVE_S: Final = 3.0
READY_S: Final = 4.0
READY: Final = b"\x01"
# In the address of a queue pair: this side speaks this part of the handshake.
PROVES: Final = "proves"


def say_ready(stream: socket.socket, peer: dict[str, Any]) -> None:
    """Tell a listener that its queue pair was reached, and wait until it has begun.

    A listener that gave up meanwhile does not answer. Raises OSError, WireFault.
    """
    if peer.get(PROVES):
        stream.settimeout(READY_S)
        stream.sendall(READY)
        if stream.recv(1) != READY:
            raise WireFault(Cause.BROKEN, "the peer waited no longer for the path over verbs")


def take_ready(stream: socket.socket, peer: dict[str, Any]) -> None:
    """Wait until the dialler has reached this side's queue pair. Raises OSError, WireFault."""
    if peer.get(PROVES):
        stream.settimeout(READY_S)
        if stream.recv(1) != READY:
            raise WireFault(Cause.BROKEN, "the peer has no path to it over verbs")
        stream.sendall(READY)
