"""Reports of gateways about the requests to models: those at replicas, and those that wait.

Pure. A lost report delays a drain or a change of replicas, and loses no request.
"""

from typing import Final

import msgspec

from libs.common.model import JobId


class ModelDemand(msgspec.Struct, frozen=True):
    """The requests to one model in one gateway.

    `outstanding` are at replicas, `waiting` have none yet, `waiting_tokens` is their input. The
    90th percentiles are those of the last half minute, 0 without a request; `tokens_per_s` is the
    input that all replicas take from this gateway. `idle_ms` is the time since a request last began
    or ended here: None if there was none, and in reports of older gateways.
    """

    outstanding: int = 0
    waiting: int = 0
    waiting_tokens: int = 0
    first_token_p90_us: int = 0
    per_token_p90_us: int = 0
    tokens_per_s: int = 0
    idle_ms: int | None = None


class Outstanding(msgspec.Struct, frozen=True):
    """A gateway's outstanding requests at retired replicas, and the demand for models that scale.

    The gateway has folded the log up to `seq`. A replica or model that is not named has none.
    """

    seq: int
    requests: dict[JobId, int] = {}
    demand: dict[str, ModelDemand] = {}


class Answered(msgspec.Struct, frozen=True):
    """gateway -> agent: the replicas, by `model.attempt_key`, that answered requests recently."""

    keys: tuple[str, ...]


encode: Final = msgspec.msgpack.Encoder().encode
decode_outstanding: Final = msgspec.msgpack.Decoder(Outstanding).decode
decode_answered: Final = msgspec.msgpack.Decoder(Answered).decode
