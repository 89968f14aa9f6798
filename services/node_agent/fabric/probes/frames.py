"""The bytes of a probe: the handshake that proves the order, frames, and the rate of a stream.

Pure. Both ends know the token of the order; neither sends it. A frame is a kind and a length,
then that many bytes. Tests: tests/unit/test_probe_frames.py.
"""

import hmac
import struct
from collections.abc import Sequence
from hashlib import blake2b
from itertools import pairwise
from typing import Final

NONCE_BYTES: Final = 16
MAC_BYTES: Final = 32
DIAL: Final = b"muster probe 1 dial"
SERVE: Final = b"muster probe 1 serve"

PING: Final = b"P"
DATA: Final = b"D"
END: Final = b"E"
HEADER: Final = struct.Struct("!cI")
PING_BYTES: Final = 64
SMALL_BYTES: Final = 64 << 10
# The longest frame; larger messages are sent as several.
FRAME_BYTES_MAX: Final = 1 << 20
# A stream's first part fills buffers and queues, so it does not count.
SKIPPED_PARTS: Final = 4
# The rest is cut into this many segments, if each has some arrivals.
SEGMENTS: Final = 8
MARKS_MIN: Final = 3


class BrokenProtocol(Exception):
    """Raised when a peer sends what no agent sends; the text says what."""


def proof(token: bytes, role: bytes, server_nonce: bytes, client_nonce: bytes) -> bytes:
    """Return what proves that this end knows the token."""
    text = role + server_nonce + client_nonce
    return blake2b(text, key=token, digest_size=MAC_BYTES).digest()


def is_proof(
    given: bytes, token: bytes, role: bytes, server_nonce: bytes, client_nonce: bytes
) -> bool:
    """Return whether these bytes prove that the other end knows the token."""
    return hmac.compare_digest(given, proof(token, role, server_nonce, client_nonce))


def header(kind: bytes, length: int) -> bytes:
    return HEADER.pack(kind, length)


def parsed(data: bytes, expected: Sequence[bytes]) -> tuple[bytes, int]:
    """Return the kind and the length of a frame. Raises BrokenProtocol."""
    kind, length = HEADER.unpack(data)
    if kind not in expected or length > FRAME_BYTES_MAX:
        raise BrokenProtocol(f"it sent a frame {kind!r} of {length} bytes")
    return kind, length


def rate(marks: Sequence[tuple[float, int]]) -> int:
    """Return bytes per second of a stream, given (seconds, bytes so far) at each arrival.

    The stream is cut into parts with equally many arrivals, and the median of their rates counts: a
    pause of either process slows down one or two parts, not the link.
    """
    if len(marks) < 2:
        return 0
    total = marks[-1][1]
    begin = next(index for index, mark in enumerate(marks) if mark[1] * SKIPPED_PARTS >= total)
    counted = marks[begin:] if begin < len(marks) - 1 else marks
    cuts = [counted[len(counted) * part // SEGMENTS] for part in range(SEGMENTS)]
    if len(counted) < SEGMENTS * MARKS_MIN:
        cuts = [counted[0]]
    spans = list(pairwise([*cuts, counted[-1]]))
    rates = sorted(
        (after[1] - before[1]) / (after[0] - before[0])
        for before, after in spans
        if after[0] > before[0]
    )
    return int(rates[(len(rates) - 1) // 2]) if rates else 0
