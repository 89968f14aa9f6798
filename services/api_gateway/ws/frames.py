"""The frames that clients are sent, as the bytes of WebSocket messages. Pure.

A frame is a JSON object: the client's id, the event, the commit up to which the client has
everything with this frame, and the data. The data come encoded, because many clients get the same.
Tests: tests/unit/test_ws_frames.py.
"""

from typing import Final

import msgspec

# RFC 6455: a whole text message, and the ways in which its length is written.
TEXT: Final = 0x81
SHORT_MAX: Final = 125
TWO_BYTES: Final = 126
TWO_BYTES_MAX: Final = 0xFFFF
EIGHT_BYTES: Final = 127

_encode: Final = msgspec.json.Encoder().encode


class Name:
    """The id of a subscription or request, encoded once for all its frames."""

    def __init__(self, name: str) -> None:
        self.head = b'{"id":%s,"event":"' % _encode(name)

    def frame(self, event: str, seq: int, data: bytes) -> bytes:
        """Return a frame as a message. `data` is JSON."""
        return message(b'%s%s","seq":%d,"data":%s}' % (self.head, event.encode(), seq, data))


def encoded(value: object) -> bytes:
    """Return data as JSON."""
    return _encode(value)


def pong(number: int, seq: int) -> bytes:
    return message(b'{"event":"pong","n":%d,"seq":%d}' % (number, seq))


def alive(seq: int) -> bytes:
    return message(b'{"event":"alive","seq":%d}' % seq)


def hello(seq: int, principal: object) -> bytes:
    """Return the first frame of a connection."""
    return message(b'{"event":"hello","seq":%d,"data":%s}' % (seq, _encode(principal)))


def error(name: str, seq: int, status: int, detail: str, field: str = "") -> bytes:
    """Return an error about a subscription, a request, or, without a name, about a message."""
    data: dict[str, object] = {"status": status, "detail": detail}
    if field:
        data["field"] = field
    return Name(name).frame("error", seq, _encode(data))


def message(text: bytes) -> bytes:
    """Return one text message as it is sent by a server: whole, and not masked."""
    size = len(text)
    if size <= SHORT_MAX:
        head = bytes((TEXT, size))
    elif size <= TWO_BYTES_MAX:
        head = bytes((TEXT, TWO_BYTES)) + size.to_bytes(2, "big")
    else:
        head = bytes((TEXT, EIGHT_BYTES)) + size.to_bytes(8, "big")
    return head + text
