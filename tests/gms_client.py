"""A small client of the GMS protocol for stand-ins of engines, from its published description."""

import array
import socket
import struct
from typing import Any

import msgspec


class Gms:
    """One connection: the session's lock lives as long as it."""

    def __init__(self, path: str) -> None:
        self.stream = socket.socket(socket.AF_UNIX)
        self.stream.connect(path)
        self.data = b""

    def ask(self, kind: str, **fields: object) -> tuple[dict[str, Any], list[int]]:
        """Send a request; return the answer and the descriptors that came with it."""
        body = msgspec.msgpack.encode({"type": kind, **fields})
        self.stream.sendall(struct.pack("!I", len(body)) + body)
        rights: list[int] = []
        while len(self.data) < 4 or len(self.data) < 4 + struct.unpack("!I", self.data[:4])[0]:
            data, ancillary, _, _ = self.stream.recvmsg(65_536, socket.CMSG_SPACE(4))
            for _, _, found in ancillary:
                rights += array.array("i", found)
            if not data:
                raise ConnectionError("the server closed the connection")
            self.data += data
        end = 4 + struct.unpack("!I", self.data[:4])[0]
        answer, self.data = msgspec.msgpack.decode(self.data[4:end]), self.data[end:]
        if answer["type"] == "error_response":
            raise RuntimeError(answer["error"])
        return answer, rights

    def lock(self, kind: str) -> None:
        self.ask("handshake_request", lock_type=kind, timeout_ms=None)
