"""Messages between gateways and quota about requests and tokens per minute of tenants, keys and
models.

Pure; typed MessagePack on `ask.quota.reserve` and `ask.quota.return`, never stored. A slice is a
share of the current minute's budget that only one gateway may spend. Slices never overlap, so
gateways need not agree on anything else.
"""

import msgspec

from libs.common.model import TenantId


class SliceAsk(msgspec.Struct, frozen=True, array_like=True):
    """gateway -> quota: a request for a slice of at least this size.

    `account` says whose limits it is of: the tenant's (empty), or those of a key or of the tenant
    at a model (`rate_limits.py`).
    """

    tenant: TenantId
    requests: int
    tokens: int
    account: str = ""


class Slice(msgspec.Struct, frozen=True, array_like=True):
    """quota -> gateway: a slice, if `given`.

    `window` is the number of the minute, which lasts another `left_ms` from the request on.
    `starting`: there is nothing before the next minute, because quota has restarted and does not
    know the slices of this one. A limit is 0 if there is none. `requests_left` and `tokens_left`
    are what no gateway has got yet.
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
    """gateway -> quota, without an answer: the unused part of slices of `window`.

    If the message is lost, that part stays unused for the minute.
    """

    tenant: TenantId
    window: int
    requests: int
    tokens: int
    account: str = ""


def encode(message: SliceAsk | Slice | SliceReturn) -> bytes:
    return msgspec.msgpack.encode(message)


def decode_ask(data: bytes) -> SliceAsk:
    return msgspec.msgpack.decode(data, type=SliceAsk)


def decode_slice(data: bytes) -> Slice:
    return msgspec.msgpack.decode(data, type=Slice)


def decode_return(data: bytes) -> SliceReturn:
    return msgspec.msgpack.decode(data, type=SliceReturn)
