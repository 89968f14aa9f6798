"""Lines of a stream that comes in pieces.

Pure. Tests: tests/unit/test_client_lines.py.
"""

from collections.abc import Mapping
from typing import Final

# A longer line is given in parts.
LINE_BYTES_MAX: Final = 16 << 20


class LineBuffer:
    """Keeps the beginning of a line until its end comes."""

    def __init__(self, bytes_max: int = LINE_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that are complete now, without their ends."""
        self.rest += data
        *whole, rest = self.rest.split(b"\n")
        while len(rest) >= self.bytes_max:
            whole.append(rest[: self.bytes_max])
            rest = rest[self.bytes_max :]
        self.rest = rest
        return [bytes(line) for line in whole]

    def end(self) -> list[bytes]:
        """Return the last line, if it has no end."""
        last, self.rest = bytes(self.rest), bytearray()
        return [last] if last else []


def text_of(line: bytes) -> str:
    """Return a line of output as text; bytes that are not UTF-8 are replaced."""
    return line.removesuffix(b"\r").decode("utf-8", "replace")


def rest_of(buffers: Mapping[str, LineBuffer]) -> list[str]:
    """Return the last lines that have no end, and empty the buffers."""
    return [text_of(line) for buffer in buffers.values() for line in buffer.end()]
