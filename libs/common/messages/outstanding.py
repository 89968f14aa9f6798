"""What gateways say of the requests that they have under way at replicas. Pure; lost without harm."""

from typing import Final

import msgspec

from libs.common.model import JobId


class Outstanding(msgspec.Struct, frozen=True):
    """What a gateway that has folded the log up to `seq` has outstanding at replicas that are to end; a replica that is not named has
    nothing outstanding there.
    """

    seq: int
    requests: dict[JobId, int] = {}


class Answered(msgspec.Struct, frozen=True):
    """A gateway to a node: these replicas, by attempt key (`model.attempt_key`), answered requests a moment ago."""

    keys: tuple[str, ...]


encode: Final = msgspec.msgpack.Encoder().encode
decode_outstanding: Final = msgspec.msgpack.Decoder(Outstanding).decode
decode_answered: Final = msgspec.msgpack.Decoder(Answered).decode
