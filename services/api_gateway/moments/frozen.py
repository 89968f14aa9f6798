"""A state of the cluster as bytes, in parts that are each written and read in about a millisecond.

Pure. A snapshot of a large cluster takes hundreds of milliseconds to decode in one piece, and all
requests would wait. So a state is frozen and thawed part by part, and the caller pauses between
them. Tests: tests/unit/test_frozen_states.py.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final, NamedTuple, get_args, get_origin

import msgspec

from libs.common.state.cluster import Cluster

# Entries of one table in one part.
PART_ENTRIES: Final = 50


class Part(NamedTuple):
    """Some entries of one table of the state, or one of its other fields."""

    field: str
    data: bytes


Parts = list[Part]

_encode: Final = msgspec.msgpack.Encoder().encode
_decoders: Final = {
    field.name: msgspec.msgpack.Decoder(field.type) for field in msgspec.structs.fields(Cluster)
}
_fields: Final = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])
# The tables, each with a decoder that leaves its entries as bytes.
_tables: Final[dict[str, msgspec.msgpack.Decoder[dict[Any, msgspec.Raw]]]] = {
    field.name: msgspec.msgpack.Decoder(dict[get_args(field.type)[0], msgspec.Raw])  # type: ignore[misc]
    for field in msgspec.structs.fields(Cluster)
    if get_origin(field.type) is dict
}


def frozen(cluster: Cluster) -> Iterator[Part]:
    """Yield the parts of a state that does not change meanwhile."""
    for name in _decoders:
        value = getattr(cluster, name)
        if name in _tables:
            yield from _pieces(name, value)
        else:
            yield Part(name, _encode(value))


def split(state: msgspec.Raw) -> Iterator[Part]:
    """Yield the parts of an encoded state without decoding its entries.

    Raises msgspec.DecodeError.
    """
    for name, value in _fields.decode(state).items():
        if name in _tables:
            yield from _pieces(name, _tables[name].decode(value))
        else:
            yield Part(name, bytes(value))


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
