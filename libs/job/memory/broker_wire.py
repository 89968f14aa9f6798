"""The messages of the memory broker: 4 bytes of length, little-endian, then a MessagePack map.

A file descriptor travels beside the first byte of a message (SCM_RIGHTS). A sender passes at most
one with each message. Tests: tests/unit/test_memory_wire.py.
"""

import array
import os
import socket
import struct
from typing import Any, Final

import msgspec

MESSAGE_BYTES_MAX: Final = 4 << 10
RECEIVE_BYTES: Final = 16 << 10
DESCRIPTORS_AT_ONCE: Final = 16
_LENGTH: Final = struct.Struct("<I")


class BadMessage(Exception):
    """Received bytes that are no message of this protocol; close the connection."""


class Ended(Exception):
    """The other side closed the connection."""


def packed(message: dict[str, Any]) -> bytes:
    """Return the bytes of a message."""
    body = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(body)) + body


class Link:
    """One end of a connection: it collects bytes and descriptors and returns whole messages.

    `accepts` says whether descriptors are taken; those of a peer that may not send any are closed.
    `most` is the size of the largest message that is accepted, in bytes.
    """

    def __init__(self, stream: socket.socket, accepts: bool, most: int = MESSAGE_BYTES_MAX) -> None:
        self.stream = stream
        self.accepts = accepts
        self.most = most
        self.buffer = bytearray()
        self.descriptors: list[int] = []

    def send(self, message: dict[str, Any], descriptor: int = -1) -> None:
        """Send a whole message. Raises OSError (BlockingIOError if the peer does not read)."""
        data = packed(message)
        rights = [] if descriptor < 0 else [descriptor]
        sent = socket.send_fds(self.stream, [data], rights) if rights else self.stream.send(data)
        while sent < len(data):
            sent += self.stream.send(data[sent:])

    def receive(self) -> None:
        """Read what has arrived. Raises Ended, BadMessage, or OSError (BlockingIOError)."""
        space = socket.CMSG_SPACE(DESCRIPTORS_AT_ONCE * array.array("i").itemsize)
        flags = socket.MSG_CMSG_CLOEXEC
        data, ancillary, found, _ = self.stream.recvmsg(RECEIVE_BYTES, space, flags)
        self._take(ancillary)
        if found & socket.MSG_CTRUNC:
            raise BadMessage("too many descriptors in one message")
        if not data:
            raise Ended
        self.buffer += data

    def messages(self) -> list[dict[str, Any]]:
        """Return the whole messages that have arrived. Raises BadMessage."""
        found = []
        while (message := self.message()) is not None:
            found.append(message)
        return found

    def message(self) -> dict[str, Any] | None:
        """Return the next whole message; None if there is none yet. Raises BadMessage."""
        if len(self.buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self.buffer)
        if length > self.most:
            raise BadMessage(f"a message of {length} bytes: the most are {self.most}")
        end = _LENGTH.size + length
        if len(self.buffer) < end:
            return None
        body = bytes(self.buffer[_LENGTH.size : end])
        del self.buffer[:end]
        try:
            message = msgspec.msgpack.decode(body)
        except (ValueError, RecursionError) as error:
            raise BadMessage(f"not MessagePack: {error}") from None
        if not isinstance(message, dict):
            raise BadMessage(f"a {type(message).__name__} instead of a map")
        return message

    def take_descriptor(self) -> int:
        """Return the oldest descriptor that arrived, which the caller owns. Raises BadMessage."""
        if not self.descriptors:
            raise BadMessage("a descriptor is missing")
        return self.descriptors.pop(0)

    def close(self) -> None:
        """Close the connection and the descriptors that were not taken."""
        self.stream.close()
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors.clear()

    def _take(self, ancillary: list[tuple[int, int, bytes]]) -> None:
        for level, kind, data in ancillary:
            if (level, kind) != (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                continue
            found = array.array("i")
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
            if self.accepts:
                self.descriptors += found
            else:
                for descriptor in found:
                    os.close(descriptor)
