"""One request to the gateway as the log keeps it: who asked for what, whether they might, and how
it ended.

No body, no key.

Pure. A batch is what AccessRecorded.entries holds: a MessagePack array of entries under zlib; an
entry only ever gains fields with defaults, at its end. The gateway writes it
(`services/api_gateway/access/records.py`); whoever has the archive can read it.
"""

import struct
import zlib
from typing import Final

import msgspec

from libs.common.errors import Corrupt

# Of what a client chose, so much is kept.
TEXT_MAX: Final = 128
# A batch cannot say that it is more than this, whatever its bytes hold.
BATCH_BYTES_MAX: Final = 1 << 20
_LEVEL: Final = 1
_ARRAY: Final = b"\xdd"


class AccessEntry(msgspec.Struct, frozen=True, array_like=True):
    """`route` is the template, `ids` what stood in its places.

    `status` 0: the client went before an answer began. `denied` says why, and is empty for what was
    allowed.
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
    # What a route did that its address does not say, without secrets: the command of an exec, the
    # port of a forwarded connection.
    detail: str = ""


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(tuple[AccessEntry, ...])


def encode(entry: AccessEntry) -> bytes:
    """One entry, to be packed with others."""
    return _encoder.encode(entry)


def pack(entries: list[bytes]) -> bytes:
    """A batch of encoded entries."""
    return zlib.compress(_ARRAY + struct.pack(">I", len(entries)) + b"".join(entries), _LEVEL)


def unpack(batch: bytes) -> tuple[AccessEntry, ...]:
    """Raises Corrupt for bytes that are no batch."""
    try:
        return _decoder.decode(zlib.decompressobj().decompress(batch, BATCH_BYTES_MAX))
    except (zlib.error, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(f"these bytes are no batch of access entries: {error}") from error
