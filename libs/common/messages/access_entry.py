"""One access record: who sent which request to a gateway, whether it was allowed, how it ended.

Pure. A record holds no body and no key. AccessRecorded.entries holds a batch: a MessagePack array
of entries, compressed with zlib. An entry only gains fields with defaults, at its end. The gateway
writes records (`services/api_gateway/access/records.py`); the archive's readers decode them.
"""

import struct
import zlib
from typing import Final

import msgspec

from libs.common.errors import Corrupt

# Characters that are kept of a text that the client chose.
TEXT_MAX: Final = 128
# A batch decompresses to at most this, whatever its bytes hold.
BATCH_BYTES_MAX: Final = 1 << 20
_LEVEL: Final = 1
_ARRAY: Final = b"\xdd"


class AccessEntry(msgspec.Struct, frozen=True, array_like=True):
    """One request.

    `route` is the template, `ids` are the values of its placeholders. `status` 0: the client left
    before the answer began. `denied` is why the request was refused; empty if it was allowed.
    `detail` is what the request did beyond its address, without secrets: the command of an exec,
    the port of a forwarded connection. `model` is the deployed model of a request to one.
    """

    at_ns: int
    request_id: str
    key_id: str
    tenant: str
    user: str
    method: str
    route: str
    ids: tuple[str, ...]
    status: int
    denied: str
    source: str
    detail: str = ""
    model: str = ""


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(tuple[AccessEntry, ...])


def encode(entry: AccessEntry) -> bytes:
    """Return the bytes of one entry, for `pack`."""
    return _encoder.encode(entry)


def pack(entries: list[bytes]) -> bytes:
    """Return a compressed batch of encoded entries."""
    return zlib.compress(_ARRAY + struct.pack(">I", len(entries)) + b"".join(entries), _LEVEL)


def unpack(batch: bytes) -> tuple[AccessEntry, ...]:
    """Return the entries of a batch. Raises Corrupt for other bytes."""
    try:
        return _decoder.decode(zlib.decompressobj().decompress(batch, BATCH_BYTES_MAX))
    except (zlib.error, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(f"these bytes are not a batch of access entries: {error}") from error
