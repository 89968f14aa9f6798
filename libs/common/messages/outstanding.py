"""Reports of gateways about their outstanding requests at replicas.

Pure. A lost report delays a drain and loses no request.
"""

from typing import Final

import msgspec

from libs.common.model import JobId


class Outstanding(msgspec.Struct, frozen=True):
    """A gateway's outstanding requests at retired replicas.

    The gateway has folded the log up to `seq`. A replica that is not named has none.
    """

    seq: int
    requests: dict[JobId, int] = {}


class Answered(msgspec.Struct, frozen=True):
    """gateway -> agent: the replicas, by `model.attempt_key`, that answered requests recently."""

    keys: tuple[str, ...]


encode: Final = msgspec.msgpack.Encoder().encode
decode_outstanding: Final = msgspec.msgpack.Decoder(Outstanding).decode
decode_answered: Final = msgspec.msgpack.Decoder(Answered).decode
