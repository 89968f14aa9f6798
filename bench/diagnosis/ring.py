"""Collectives over sockets in a ring: what `gloo` looks like from outside, without a dependency.

A rank in `all_reduce`, `broadcast` or `barrier` waits until all ranks have called it.
"""

import socket
import struct
import time

WORD = struct.Struct("!q8sd")
# A rank that gets the message of another collective waits for its own, as gloo does.
FOR_EVER_S = 3_600.0
CONNECT_S = 150.0


class Ring:
    """One rank's place in the ring: it hears from the rank before, and tells the one behind."""

    def __init__(self, rank: int, world: int, name: str) -> None:
        self.rank, self.world, self.number = rank, world, 0
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(_address(name, rank))
            server.listen()
            self.behind = _connected(_address(name, (rank + 1) % world))
            self.before, _ = server.accept()
        self.is_broken = False

    def all_reduce(self, value: float) -> float:
        """Return the sum of the values of all ranks."""
        if self.is_broken:
            self._wait_for_link()
        total = self._passed(b"sum", value, adds=True)
        return self._passed(b"total", total, adds=False)

    def broadcast(self, value: float) -> float:
        """Return the value of rank 0."""
        return self._passed(b"value", value, adds=False)

    def barrier(self) -> None:
        """Wait for all ranks."""
        self._passed(b"here", 0.0, adds=False)
        self._passed(b"there", 0.0, adds=False)

    def _passed(self, name: bytes, value: float, adds: bool) -> float:
        """Pass a value around the ring, from rank 0 to rank 0."""
        self.number += 1
        if self.rank == 0:
            self._send(name, value)
            return self._received(name)
        found = self._received(name)
        self._send(name, found + value if adds else found)
        return found

    def _send(self, name: bytes, value: float) -> None:
        self.behind.sendall(WORD.pack(self.number, name, value))

    def _received(self, name: bytes) -> float:
        data = b""
        while len(data) < WORD.size:
            part = self.before.recv(WORD.size - len(data))
            if not part:
                time.sleep(FOR_EVER_S)  # the peer is gone
            data += part
        number, found, value = WORD.unpack(data)
        if (number, found.rstrip(b"\0")) != (self.number, name):
            time.sleep(FOR_EVER_S)
        return float(value)

    def _wait_for_link(self) -> None:
        time.sleep(FOR_EVER_S)


def _address(name: str, rank: int) -> str:
    """Return an abstract address: it needs no file and no port."""
    return f"\0{name}-{rank}"


def _connected(address: str) -> socket.socket:
    """Connect to the rank behind, which may not listen yet."""
    deadline = time.monotonic() + CONNECT_S
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(address)
        except OSError:
            connection.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return connection
