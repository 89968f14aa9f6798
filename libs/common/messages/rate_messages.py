"""What gateways and quota say to each other about a tenant's requests and tokens per minute.

Pure; typed MessagePack on `ask.quota.reserve` and `ask.quota.return`, never stored. A slice is a
part of the present minute's budget that one gateway alone may spend: slices never overlap, so
gateways need not agree about anything else.
"""

import msgspec

from libs.common.model import TenantId


class SliceAsk(msgspec.Struct, frozen=True, array_like=True):
    """gateway -> quota: at least so much, or nothing."""

    tenant: TenantId
    requests: int
    tokens: int


class Slice(msgspec.Struct, frozen=True, array_like=True):
    """The answer; not `given`: nothing.

    `window` numbers the minute, which lasts `left_ms` more, counted from when it was asked for.

    `starting`: nothing before the next minute, for quota does not know what it gave out before it
    was started again. The limits are 0 where there is none; `requests_left` and `tokens_left` are
    what nobody has been given yet.
    """

    window: int
    left_ms: int
    given: bool
    requests: int = 0
    tokens: int = 0
    requests_limit: int = 0
    tokens_limit: int = 0
    requests_left: int = 0
    tokens_left: int = 0
    starting: bool = False


class SliceReturn(msgspec.Struct, frozen=True, array_like=True):
    """gateway -> quota, without an answer: given out in `window`, and not needed.

    If it is lost, so much stays unused for that minute.
    """

    tenant: TenantId
    window: int
    requests: int
    tokens: int


def encode(message: SliceAsk | Slice | SliceReturn) -> bytes:
    return msgspec.msgpack.encode(message)


def decode_ask(data: bytes) -> SliceAsk:
    return msgspec.msgpack.decode(data, type=SliceAsk)


def decode_slice(data: bytes) -> Slice:
    return msgspec.msgpack.decode(data, type=Slice)


def decode_return(data: bytes) -> SliceReturn:
    return msgspec.msgpack.decode(data, type=SliceReturn)
