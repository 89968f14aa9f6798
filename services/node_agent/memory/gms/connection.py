"""One engine's connection: its phase, the bytes that arrived, and the answers that wait to leave.

A connection is read only while it may ask: not while it waits for a lock or for memory, and not
while answers wait, so that a peer that does not read costs one answer. Tests:
tests/attack/test_gms.py.
"""

import os
import socket
from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import msgspec

from services.node_agent.machine.poll_loop import READ, WRITE
from services.node_agent.memory.gms import messages as m
from services.node_agent.memory.grants import Holder

RECEIVE_BYTES: Final = 64 << 10


class Phase(Enum):
    """The state of a connection."""

    NEW = "it has sent no handshake"
    WAITING = "it waits for a lock"
    OPEN = "it holds a lock"
    PENDING = "it waits for memory"
    CLOSING = "it ends when its answers have left"


@dataclass
class Connection:
    """A connection. `until_ns` is when its phase is over, or is tried again (None: never).

    `asked` is the request that waits for memory, and `give_up_ns` when it is refused.
    """

    number: int
    stream: socket.socket
    entry: str
    holder: Holder
    uid: int
    until_ns: int | None
    phase: Phase = Phase.NEW
    asked: m.Allocate | None = None
    give_up_ns: int = 0
    received: bytearray = field(default_factory=bytearray)
    leaving: deque[tuple[bytes, int]] = field(default_factory=deque)

    def events(self) -> int:
        """Return the events of poll(2) to wait for; a hang-up is always reported."""
        if self.leaving:
            return WRITE
        return READ if self.phase in (Phase.NEW, Phase.OPEN) else 0

    def receive(self) -> bool:
        """Read what arrived; return False if the peer is gone. Raises OSError.

        The kernel closes descriptors that come along, because none are asked for.
        """
        try:
            data = self.stream.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return True
        self.received += data
        return bool(data)

    def send(self, message: msgspec.Struct, descriptor: int = -1) -> None:
        """Send a message, or keep what does not fit for `flush`. Takes the descriptor.

        Raises OSError if the peer is gone.
        """
        self.leaving.append((m.frame(message), descriptor))
        self.flush()

    def flush(self) -> None:
        """Send answers that wait, as far as the peer reads. Raises OSError if it is gone."""
        while self.leaving:
            data, descriptor = self.leaving[0]
            rights = [descriptor] if descriptor >= 0 else []
            try:
                sent = socket.send_fds(self.stream, [data], rights)
            except BlockingIOError:
                return
            if descriptor >= 0:
                os.close(descriptor)
            if sent < len(data):
                self.leaving[0] = (data[sent:], -1)
            else:
                self.leaving.popleft()

    def close(self) -> None:
        """Close the connection and descriptors that did not leave."""
        self.stream.close()
        for _, descriptor in self.leaving:
            if descriptor >= 0:
                os.close(descriptor)
        self.leaving.clear()
