"""Frames are decoded as they were encoded; anything else is refused with the reason."""

import random
import struct
import zlib

import pytest

from libs.job.transport import checksums, compression
from libs.job.transport.frames import (
    HEADER_BYTES,
    PAYLOAD_BYTES_MAX,
    BadFrame,
    Flag,
    Header,
    Kind,
    decode,
    encode,
)

MESSAGE = Header(
    Kind.MESSAGE,
    Flag.ASKS,
    length=7,
    size=7,
    number=3,
    received=2,
    credit=16,
    target=5,
    offset=9,
    checksum=11,
)


def resealed(data: bytes, at: int, value: bytes) -> bytes:
    """A header with other bytes and a right checksum of its own."""
    body = data[:at] + value + data[at + len(value) : HEADER_BYTES - 4]
    return body + struct.pack("<I", zlib.crc32(body))


@pytest.mark.parametrize(
    "header",
    [
        MESSAGE,
        Header(Kind.ACK, received=1 << 63, credit=1),
        Header(Kind.READ, size=100, number=1, target=1 << 63),
        Header(Kind.MESSAGE, Flag.ZSTD | Flag.ASKS, length=7, size=700, number=1),
    ],
)
def test_a_header_is_decoded_as_it_was_encoded(header: Header) -> None:
    data = encode(header)
    assert len(data) == HEADER_BYTES
    assert decode(memoryview(data)) == header


def test_every_flipped_bit_of_a_header_is_noticed() -> None:
    data = encode(MESSAGE)
    for bit in range(8 * HEADER_BYTES):
        wrong = bytearray(data)
        wrong[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadFrame):
            decode(wrong)


@pytest.mark.parametrize(
    ("at", "value", "why"),
    [
        (4, b"\x09", "version 9"),
        (5, b"\x63", "kind 99"),
        (6, b"\x80", "flags 0x80"),
        (8, struct.pack("<I", PAYLOAD_BYTES_MAX + 1), str(PAYLOAD_BYTES_MAX + 1)),
        (16, bytes(8), "MESSAGE frame with number 0"),
        (8, struct.pack("<I", 6), "6 bytes of payload where 7"),
        (6, bytes([Flag.DIRECT]), "MESSAGE frame with the flag DIRECT"),
    ],
)
def test_a_header_with_wrong_values_is_refused_with_the_value(
    at: int, value: bytes, why: str
) -> None:
    with pytest.raises(BadFrame, match=why):
        decode(resealed(encode(MESSAGE), at, value))


def test_a_frame_without_number_must_not_have_one() -> None:
    with pytest.raises(BadFrame, match="ACK frame with number 1"):
        decode(resealed(encode(Header(Kind.ACK)), 16, struct.pack("<Q", 1)))


def test_garbage_and_short_headers_are_refused() -> None:
    with pytest.raises(BadFrame, match="begins with"):
        decode(bytes(HEADER_BYTES))
    with pytest.raises(BadFrame, match="63 bytes"):
        decode(encode(MESSAGE)[:-1])


@pytest.mark.parametrize("kind", checksums.available())
def test_a_checksum_of_pieces_is_that_of_the_whole(kind: str) -> None:
    data = memoryview(random.Random(1).randbytes(1000))
    make = checksums.maker(kind)
    total = make()
    for at in range(0, 1000, 300):
        total.update(data[at : at + 300])
    assert int(total.intdigest()) & 0xFFFFFFFF == checksums.of(make, data)
    assert checksums.of(make, data) != checksums.of(make, data[1:])


def test_both_sides_use_the_best_checksum_that_both_have() -> None:
    assert checksums.common(("xxh3", "crc32"), ("xxh3", "crc32")) == "xxh3"
    assert checksums.common(("xxh3", "crc32"), ("crc32",)) == "crc32"
    assert checksums.common(("xxh3",), ("other",)) == "crc32"


@pytest.mark.parametrize(
    ("size", "ratio", "bytes_per_s", "pays"),
    [
        (1 << 20, 0.3, 10 << 20, True),
        (1 << 20, 0.3, 10 << 30, False),  # the link is faster than the compressor
        (1 << 20, 0.95, 10 << 20, False),  # the data hardly shrink
        (1 << 10, 0.3, 10 << 20, False),  # too little to matter
        (1 << 20, 0.3, 0.0, False),  # the link's speed is not known yet
    ],
)
def test_compression_is_used_where_it_saves_time(
    size: int, ratio: float, bytes_per_s: float, pays: bool
) -> None:
    assert compression.pays(size, ratio, bytes_per_s) is pays


def test_compressed_data_expand_to_the_announced_size_or_not_at_all() -> None:
    zstd = compression.zstd()
    if zstd is None:
        pytest.skip("zstandard is not installed")
    data = memoryview(b"muster" * 20_000)
    packed = zstd.compress(data)
    into = memoryview(bytearray(len(data)))
    zstd.expand(packed, into)
    assert into == data and zstd.probe(data) < 0.1
    for wrong in (memoryview(bytearray(len(data) - 1)), memoryview(bytearray(len(data) + 1))):
        with pytest.raises(ValueError, match="announced"):
            zstd.expand(packed, wrong)
    with pytest.raises(ValueError, match="not zstd"):
        zstd.expand(b"garbage!", into)
