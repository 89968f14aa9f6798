"""Messages between gateways about the turns of tenants at a model.

Pure. A lost message loses the charges in it, so a tenant may get so much more.
"""

from typing import Final, NamedTuple

import msgspec


class Turn(NamedTuple):
    """A tenant's requests of one priority band: the tokens charged since the last message, and
    whether some wait.
    """

    band: int
    tenant: str
    weight: int
    tokens: int
    is_waiting: bool


class ModelTurns(msgspec.Struct, frozen=True):
    """gateway -> gateways: the turns at one model."""

    model: str
    turns: list[Turn]


encode: Final = msgspec.msgpack.Encoder().encode
decode: Final = msgspec.msgpack.Decoder(ModelTurns).decode
