"""The frames of a link: a header of 64 bytes, then the payload.

Pure. Little-endian. The header has a CRC-32 of its own, so that a wrong length is never believed.
The payload's checksum is of the kind that both sides agreed on. Tests:
tests/unit/test_transport_frames.py.
"""

import struct
import zlib
from enum import IntEnum, IntFlag
from typing import Final, NamedTuple

MAGIC: Final = b"MUST"
VERSION: Final = 1
# No frame is longer, whatever its header says.
PAYLOAD_BYTES_MAX: Final = 16 << 20
_LAYOUT: Final = struct.Struct("<4sBBBxIIQQQQQI")
_CHECK: Final = struct.Struct("<I")
HEADER_BYTES: Final = _LAYOUT.size + _CHECK.size
NUMBER_MAX: Final = (1 << 64) - 1


class Kind(IntEnum):
    """The purpose of a frame."""

    ACK = 0
    MESSAGE = 1
    WRITE = 2
    READ = 3
    DATA = 4
    FAULT = 5
    CLOSE = 6


# Frames that have a number and are repeated after a reconnection.
NUMBERED: Final = frozenset({Kind.MESSAGE, Kind.WRITE, Kind.READ, Kind.DATA, Kind.FAULT})


class Flag(IntFlag):
    """Properties of a frame.

    ASKS: acknowledge at once. ZSTD: the payload is compressed. DIRECT: the network card has carried
    out this read or write, and the frame has no payload.
    """

    NONE = 0
    ASKS = 1
    ZSTD = 2
    DIRECT = 4


class Header(NamedTuple):
    """The header of one frame.

    Attributes:
        kind: the meaning of the payload.
        flags: see Flag.
        length: bytes of the payload as sent.
        size: bytes of the payload without compression; for READ, the bytes wanted.
        number: position among the numbered frames of this direction, from 1; 0 without number.
        received: number of the last frame that the sender of this header received in order.
        credit: messages that the sender of this header takes in total, since the link began.
        target: WRITE and READ: key of the region. DATA and FAULT: number of the READ or WRITE.
        offset: WRITE and READ: first byte within the region.
        checksum: of the payload as sent.
    """

    kind: Kind
    flags: Flag = Flag.NONE
    length: int = 0
    size: int = 0
    number: int = 0
    received: int = 0
    credit: int = 0
    target: int = 0
    offset: int = 0
    checksum: int = 0


class BadFrame(ValueError):
    """Received bytes that are no frame of this protocol."""


def encode(header: Header) -> bytes:
    """Return the 64 bytes of a header."""
    body = _LAYOUT.pack(
        MAGIC,
        VERSION,
        header.kind,
        header.flags,
        header.length,
        header.size,
        header.number,
        header.received,
        header.credit,
        header.target,
        header.offset,
        header.checksum & 0xFFFFFFFF,
    )
    return body + _CHECK.pack(zlib.crc32(body))


def decode(data: bytes | bytearray | memoryview) -> Header:
    """Return the header in 64 bytes. Raises BadFrame with the reason and the value."""
    if len(data) != HEADER_BYTES:
        raise BadFrame(f"a header of {len(data)} bytes: it has {HEADER_BYTES}")
    values = _LAYOUT.unpack_from(data)
    if values[0] != MAGIC:
        raise BadFrame(f"a frame begins with {bytes(values[0])!r}, not {MAGIC!r}")
    (check,) = _CHECK.unpack_from(data, _LAYOUT.size)
    found = zlib.crc32(memoryview(data)[: _LAYOUT.size])
    if found != check:
        raise BadFrame(f"a header with checksum {check:08x}: its bytes have {found:08x}")
    if values[1] != VERSION:
        raise BadFrame(f"a frame of version {values[1]}: this side speaks {VERSION}")
    return _checked(values[2:])


def _checked(values: tuple[int, ...]) -> Header:
    if values[0] not in Kind._value2member_map_:
        raise BadFrame(f"a frame of kind {values[0]}: the last kind is {max(Kind)}")
    if values[1] & ~int(Flag.ASKS | Flag.ZSTD | Flag.DIRECT):
        raise BadFrame(f"unknown flags {values[1]:#x}")
    header = Header(Kind(values[0]), Flag(values[1]), *values[2:])
    if max(header.length, header.size) > PAYLOAD_BYTES_MAX:
        most = f"the most are {PAYLOAD_BYTES_MAX}"
        raise BadFrame(f"a payload of {max(header.length, header.size)} bytes: {most}")
    if (header.number > 0) != (header.kind in NUMBERED):
        raise BadFrame(f"a {header.kind.name} frame with number {header.number}")
    if header.flags & Flag.DIRECT and header.kind not in (Kind.READ, Kind.WRITE):
        raise BadFrame(f"a {header.kind.name} frame with the flag DIRECT")
    carried = 0 if header.kind is Kind.READ or header.flags & Flag.DIRECT else header.size
    if not header.flags & Flag.ZSTD and header.length != carried:
        raise BadFrame(f"{header.length} bytes of payload where {carried} are announced")
    return header
