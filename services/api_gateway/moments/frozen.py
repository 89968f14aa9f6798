"""A state of the cluster as bytes, in parts that are each written and read in about a millisecond.

Pure. A snapshot of a large cluster takes hundreds of milliseconds to decode in one piece, and all
requests would wait. So a state is frozen and thawed part by part, and the caller pauses between
them. Tests: tests/unit/test_frozen_states.py.
"""

import hashlib
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final, NamedTuple, get_origin

import msgpack  # type: ignore[import-untyped]
import msgspec

from libs.common.state.cluster import Cluster
from libs.common.transport.snapshot import SNAPSHOT_VERSION

# Entries of one table in one part.
PART_ENTRIES: Final = 50
# A snapshot's head, with a name of the cluster, is shorter.
HEAD_BYTES: Final = 4_096


class Part(NamedTuple):
    """Some entries of one table of the state, or one of its other fields."""

    field: str
    data: bytes


Parts = list[Part]

_encode: Final = msgspec.msgpack.Encoder().encode
_decoders: Final = {
    field.name: msgspec.msgpack.Decoder(field.type) for field in msgspec.structs.fields(Cluster)
}
_tables: Final = frozenset(
    field.name for field in msgspec.structs.fields(Cluster) if get_origin(field.type) is dict
)


def frozen(cluster: Cluster) -> Iterator[Part]:
    """Yield the parts of a state that does not change meanwhile."""
    for name in _decoders:
        value = getattr(cluster, name)
        if name in _tables:
            yield from _pieces(name, value)
        else:
            yield Part(name, _encode(value))


class Head(NamedTuple):
    """The head of a snapshot, and its state, which is not read yet."""

    seq: int
    digest: bytes
    state: memoryview


def head_of(data: bytes) -> Head | None:
    """Return the head of a snapshot; None if it is damaged or of another version."""
    reader = msgpack.Unpacker()
    reader.feed(data[:HEAD_BYTES])
    try:
        reader.read_array_header()
        version, _, seq, digest = (reader.unpack() for _ in range(4))
    except (ValueError, msgpack.UnpackException):
        return None
    if version != SNAPSHOT_VERSION:
        return None
    return Head(seq, digest, memoryview(data)[reader.tell() :])


def is_whole(head: Head) -> bool:
    """Return whether the state matches its digest. It lets other threads run meanwhile."""
    return hashlib.sha256(head.state).digest() == head.digest


def split(state: bytes | memoryview) -> Iterator[Part]:
    """Yield the parts of an encoded state without decoding its entries.

    Raises msgspec.DecodeError.
    """
    reader = msgpack.Unpacker(max_buffer_size=len(state) + 1)
    try:
        reader.feed(state)
        for _ in range(reader.read_map_header()):
            name = reader.unpack()
            if name in _tables:
                yield from _split_table(reader, state, name)
            else:
                begin = reader.tell()
                reader.skip()
                yield Part(name, bytes(state[begin : reader.tell()]))
    except (ValueError, msgpack.UnpackException) as error:
        raise msgspec.DecodeError(f"the state is damaged ({error!r})") from error


def _split_table(reader: msgpack.Unpacker, state: bytes | memoryview, name: str) -> Iterator[Part]:
    left = reader.read_map_header()
    while left:
        count = min(left, PART_ENTRIES)
        begin = reader.tell()
        for _ in range(2 * count):  # keys and values
            reader.skip()
        yield Part(name, _map_header(count) + bytes(state[begin : reader.tell()]))
        left -= count


def _map_header(count: int) -> bytes:
    """Return the beginning of a map in MessagePack."""
    return bytes([0x80 | count]) if count < 16 else b"\xde" + count.to_bytes(2, "big")


def thawed(parts: Iterable[Part]) -> Iterator[Cluster]:
    """Yield one state again and again, with one part more each time.

    Raises msgspec.DecodeError.
    """
    cluster = Cluster()
    yield cluster
    for name, data in parts:
        value = _decoders[name].decode(data)
        if name in _tables:
            getattr(cluster, name).update(value)
        else:
            setattr(cluster, name, value)
        yield cluster


def size_of(parts: Iterable[Part]) -> int:
    """Return the bytes of all parts."""
    return sum(len(part.data) for part in parts)


def _pieces(name: str, table: dict[Any, Any]) -> Iterator[Part]:
    entries = iter(table.items())
    while piece := dict(islice(entries, PART_ENTRIES)):
        yield Part(name, _encode(piece))
