"""The search of a text in a job's output, as its bytes arrive.

Pure. Upper and lower case are equal. A line longer than LINE_BYTES_MAX is searched in pieces
of that length, so that the memory is bounded. Tests: tests/unit/test_output_search.py.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

LINE_BYTES_MAX: Final = 64 << 10
# A match shows at most so much of its line, from a little before the found text on.
SHOWN_BYTES: Final = 512
BEFORE_BYTES: Final = 128


class FoundLine(msgspec.Struct):
    """A line with the text: the offset of its first byte, and the line, shortened if it is long."""

    offset: int
    line: str


class SearchAnswer(msgspec.Struct):
    """The lines that were found, in order.

    `next` is the offset to continue from, and `more` tells that there is output after it.
    """

    matches: list[FoundLine]
    next: int
    more: bool


class LineSearch:
    """The search of one text. `offset` is where the first unfinished line begins."""

    def __init__(self, text: str, offset: int) -> None:
        self.wanted = text.encode().lower()
        self.offset = offset
        self.rest = b""

    def feed(self, data: bytes) -> Iterator[FoundLine]:
        """Yield the finished lines of the data that contain the text."""
        lines = (self.rest + data).split(b"\n")
        self.rest = lines.pop()
        for line in lines:
            yield from self._look(line)
            self.offset += len(line) + 1
        while len(self.rest) > LINE_BYTES_MAX:
            piece, self.rest = self.rest[:LINE_BYTES_MAX], self.rest[LINE_BYTES_MAX:]
            yield from self._look(piece)
            self.offset += len(piece)

    def end(self) -> Iterator[FoundLine]:
        """Yield the last line, which has no end, if it contains the text."""
        yield from self._look(self.rest)
        self.offset += len(self.rest)
        self.rest = b""

    def _look(self, line: bytes) -> Iterator[FoundLine]:
        at = line.lower().find(self.wanted)
        if at < 0:
            return
        begin = max(0, at - BEFORE_BYTES) if len(line) > SHOWN_BYTES else 0
        shown = line[begin : begin + SHOWN_BYTES].decode(errors="replace")
        yield FoundLine(self.offset, "…" * bool(begin) + shown)
