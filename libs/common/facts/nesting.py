"""Measures how deeply a message is nested, without recursion, and reads the kind of a fact.

Pure. Decoders recurse, and where they give up depends on the caller's stack: two readers could
disagree about the same bytes. This count depends on the bytes alone. Tests:
tests/unit/test_reading.py.
"""

from typing import Final

import msgspec

# Errors that a decoder raises for malformed bytes.
UNDECODABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

# A valid commit nests about 6 levels.
DEPTH_MAX: Final = 64

# Values in one commit. A reader spends time on each, and the few packed bytes of a node may hold a
# million; the registration of a node with 20,000 attempts holds about 100,000.
VALUES_MAX: Final = 1 << 17

# Bytes that cannot begin an array or a map of MessagePack.
_PLAIN: Final = bytes(
    byte for byte in range(256) if not (0x80 <= byte <= 0x9F or 0xDC <= byte <= 0xDF)
)
# By first byte: how many bytes of a size follow, and how many of the value itself beside that size.
_SIZED: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_FIXED: Final = {
    0xCA: 4,
    0xCB: 8,
    0xCC: 1,
    0xCD: 2,
    0xCE: 4,
    0xCF: 8,
    0xD0: 1,
    0xD1: 2,
    0xD2: 4,
    0xD3: 8,
    0xD4: 2,
    0xD5: 3,
    0xD6: 5,
    0xD7: 9,
    0xD8: 17,
}
_EXTENDED: Final = {0xC7: 1, 0xC8: 2, 0xC9: 4}
_CONTAINERS: Final = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}


class _Kind(msgspec.Struct, frozen=True):
    kind: str


_kind: Final = msgspec.msgpack.Decoder(_Kind)


def kind_in(data: bytes) -> str:
    """Return the kind of a fact that cannot be decoded; "?" if it has none."""
    try:
        return _kind.decode(data).kind
    except UNDECODABLE:
        return "?"


def too_deep(data: bytes) -> bool:
    """Return whether the bytes nest more than DEPTH_MAX levels, or hold more than VALUES_MAX
    values.

    Truncated bytes count as far as they go.
    """
    if len(data.translate(None, _PLAIN)) <= DEPTH_MAX:
        return False
    open_: list[int] = []
    at = values = 0
    while at < len(data):
        at, items = _value(data, at)
        values += 1
        if values > VALUES_MAX:
            return True
        if items:
            open_.append(items)
            if len(open_) > DEPTH_MAX:
                return True
            continue
        while open_:
            open_[-1] -= 1
            if open_[-1]:
                break
            open_.pop()
    return False


def array_length(data: bytes) -> int:
    """Return the number of values in the array at the start of these bytes; 0 if they start with
    anything else.
    """
    first = data[0] if data else 0
    return _value(data, 0)[1] if 0x90 <= first <= 0x9F or first in (0xDC, 0xDD) else 0


def _value(data: bytes, at: int) -> tuple[int, int]:
    """Return where the next value begins, and how many values this one holds."""
    first = data[at]
    at += 1
    if 0x80 <= first <= 0x8F:
        return at, 2 * (first & 0x0F)
    if 0x90 <= first <= 0x9F:
        return at, first & 0x0F
    if first in _CONTAINERS:
        size, each = _CONTAINERS[first]
        return at + size, each * int.from_bytes(data[at : at + size], "big")
    if 0xA0 <= first <= 0xBF:
        return at + (first & 0x1F), 0
    if first in _SIZED:
        size = _SIZED[first]
        return at + size + int.from_bytes(data[at : at + size], "big"), 0
    if first in _EXTENDED:
        size = _EXTENDED[first]
        return at + size + 1 + int.from_bytes(data[at : at + size], "big"), 0
    return at + _FIXED.get(first, 0), 0
