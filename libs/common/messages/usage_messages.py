"""Messages between gateways and audit about what was used and charged in a time.

Pure; typed MessagePack on `ask.audit.usage`, never stored. Shares are in hundredths of a GPU times
milliseconds.
"""

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

# The kinds of lines: a job's charge, the part of a replica's charge that requests caused, the rest.
JOB: Final = "job"
REQUESTS: Final = "requests"
IDLE: Final = "idle"

# What tells lines apart: payer, tenant, user, key, model, kind.
Name = tuple[str, str, str, str, str, str]


class UsageAsk(msgspec.Struct, frozen=True):
    """gateway -> audit: the use that was recorded from `since_ns` to before `until_ns`.

    Only lines of which `tenant` is the payer or the user; empty: all.
    """

    since_ns: int
    until_ns: int
    tenant: str = ""


class UsageLine(msgspec.Struct):
    """The use of one model by one key, or of jobs by one user.

    `payer` is charged for `share_ms`. Requests, tokens and the share count when they were recorded:
    requests when they ended, shares when the job or replica was charged, at its end.
    """

    payer: str
    tenant: str
    user: str
    key: str
    model: str
    kind: str
    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    share_ms: int = 0


class UsageAnswer(msgspec.Struct):
    """audit -> gateway: the lines, what each tenant was charged, and the last commit that counts.

    The shares of a payer's lines add up to what it was charged.
    """

    lines: list[UsageLine]
    charged: dict[str, int]
    seq: int


def merged(lines: Iterable[UsageLine], name_of: Callable[[UsageLine], Name]) -> list[UsageLine]:
    """Add up the lines that have the same name."""
    found: dict[Name, UsageLine] = {}
    for line in lines:
        name = name_of(line)
        into = found.setdefault(name, UsageLine(*name))
        into.requests += line.requests
        into.input_tokens += line.input_tokens
        into.output_tokens += line.output_tokens
        into.share_ms += line.share_ms
    return list(found.values())


_encode: Final = msgspec.msgpack.Encoder().encode
_ask: Final = msgspec.msgpack.Decoder(UsageAsk)
_answer: Final = msgspec.msgpack.Decoder(UsageAnswer)


def encode(message: UsageAsk | UsageAnswer) -> bytes:
    return _encode(message)


def decode_ask(data: bytes) -> UsageAsk:
    return _ask.decode(data)


def decode_answer(data: bytes) -> UsageAnswer:
    return _answer.decode(data)
