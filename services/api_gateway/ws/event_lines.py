"""The events of a model's stream, taken out of server-sent events. Pure.

Tests: tests/unit/test_ws_frames.py.
"""

from typing import Final, NamedTuple

DATA: Final = b"data:"
COMMENT: Final = b":"
DONE: Final = b"[DONE]"
# Bytes of one event. A longer one ends the request.
EVENT_BYTES_MAX: Final = 1 << 20


class TooLong(Exception):
    """An event is longer than EVENT_BYTES_MAX."""


class Line(NamedTuple):
    """The data of one event, or a comment."""

    text: bytes
    is_comment: bool = False


class EventLines:
    """The bytes of one stream, as far as they have come."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Line]:
        """Return the events and comments that are complete. Raises TooLong."""
        *whole, self._rest = (self._rest + data).replace(b"\r\n", b"\n").split(b"\n\n")
        if len(self._rest) > EVENT_BYTES_MAX:
            raise TooLong
        return [found for event in whole if (found := _line(event)) is not None]


def _line(event: bytes) -> Line | None:
    lines = event.split(b"\n")
    data = b"\n".join(line[len(DATA) :].strip() for line in lines if line.startswith(DATA))
    if data and data != DONE:
        return Line(data)
    comments = [line[1:].strip() for line in lines if line.startswith(COMMENT)]
    return Line(b" ".join(comments), is_comment=True) if comments and not data else None
