"""Messages between gateways and audit about what was used and charged in a time.

Pure; typed MessagePack on `ask.audit.usage` and `ask.audit.charges`, never stored. Shares are in
hundredths of a GPU times milliseconds, costs in millionths of a currency.
"""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import msgspec

from libs.common.facts import UsageCharged

# The kinds of lines: a job's charge, the part of a replica's charge that requests caused, the rest.
JOB: Final = "job"
REQUESTS: Final = "requests"
IDLE: Final = "idle"

# What else may tell lines apart, when it is asked for: the model of GPU, the job, and one period.
GPU: Final = "gpu"
PERIODS: Final = ("hour", "day", "month")
FURTHER: Final = (GPU, JOB, *PERIODS)


class Name(NamedTuple):
    """The key of a usage line. A line has one currency, so that costs add up."""

    payer: str
    tenant: str
    user: str
    key: str
    model: str
    kind: str
    gpu: str = ""
    job: str = ""
    period: str = ""
    currency: str = ""


class UsageAsk(msgspec.Struct, frozen=True):
    """gateway -> audit: the use that was recorded from `since_ns` to before `until_ns`.

    Only lines of which `tenant` is the payer or the user; empty: all. `further` are some of
    FURTHER. `fleet`: also return the use of the whole fleet. `user`: only lines of this user,
    of `tenant` if it is set.
    """

    since_ns: int
    until_ns: int
    tenant: str = ""
    further: tuple[str, ...] = ()
    fleet: bool = False
    user: str = ""


class UsageLine(msgspec.Struct, omit_defaults=True):
    """The use of one model by one key, or of jobs by one user.

    `payer` is charged for `share_ms`. Requests, tokens and the share count when they were recorded:
    requests when they ended, shares when the job or replica was charged, at its end. In
    `busy_share_ms` devices computed and in `idle_share_ms` they did not; the rest was not measured.
    `charges` counts the charges that the line has a part of. When lines are merged, their counts
    are added, so a charge with a part in two of them counts twice.
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
    gpu: str = ""
    job: str = ""
    period: str = ""
    currency: str = ""
    cost_micros: int = 0
    busy_share_ms: int = 0
    idle_share_ms: int = 0
    energy_mj: int = 0
    charges: int = 0


SUMS: Final = (
    *("requests", "input_tokens", "output_tokens", "share_ms", "cost_micros"),
    *("busy_share_ms", "idle_share_ms", "energy_mj", "charges"),
)


class FleetLine(msgspec.Struct):
    """The time of all GPUs of one model: the parts add up to `capacity_share_ms`.

    `running_share_ms` was allocated to attempts that are not charged yet. What was allocated to
    others was busy, idle or not measured.
    """

    gpu: str
    capacity_share_ms: int = 0
    busy_share_ms: int = 0
    idle_share_ms: int = 0
    unmeasured_share_ms: int = 0
    running_share_ms: int = 0
    unallocated_share_ms: int = 0


class UsageAnswer(msgspec.Struct):
    """audit -> gateway: the lines, what each tenant was charged, and the last commit that counts.

    The shares of a payer's lines add up to what it was charged, and their costs to `costs`, which
    are by payer and currency. `fleet` has no running attempts: the gateway knows those.
    """

    lines: list[UsageLine]
    charged: dict[str, int]
    seq: int
    costs: dict[str, dict[str, int]] = {}
    fleet: list[FleetLine] = []


class ChargesAsk(msgspec.Struct, frozen=True):
    """gateway -> audit: the charges that were recorded from `since_ns` to before `until_ns`.

    Only those of `tenant` and of jobs of `user`; empty: all. At most `limit`, the newest ones.
    """

    since_ns: int
    until_ns: int
    limit: int
    tenant: str = ""
    user: str = ""


class ChargeRow(msgspec.Struct):
    """A charge without its lines, and when it was recorded."""

    at_ns: int
    charge: UsageCharged


class ChargesAnswer(msgspec.Struct):
    """audit -> gateway: charges, the newest first; `left_out` counts the older ones."""

    rows: list[ChargeRow]
    left_out: int
    seq: int


def new_line(name: Name) -> UsageLine:
    """Return a line with this name and nothing in it."""
    return UsageLine(**name._asdict())


def name_of(line: UsageLine) -> Name:
    """Return the whole name of a line."""
    return Name(**{field: getattr(line, field) for field in Name._fields})


def merged(lines: Iterable[UsageLine], name_of: Callable[[UsageLine], Name]) -> list[UsageLine]:
    """Add up the lines that have the same name."""
    found: dict[Name, UsageLine] = {}
    for line in lines:
        name = name_of(line)
        into = found.get(name)
        if into is None:
            into = found[name] = new_line(name)
        add(into, line)
    return list(found.values())


def add(into: UsageLine, line: UsageLine) -> None:
    """Add the numbers of one line to another."""
    for field in SUMS:
        setattr(into, field, getattr(into, field) + getattr(line, field))


_encode: Final = msgspec.msgpack.Encoder().encode
_ask: Final = msgspec.msgpack.Decoder(UsageAsk)
_answer: Final = msgspec.msgpack.Decoder(UsageAnswer)
_charges_ask: Final = msgspec.msgpack.Decoder(ChargesAsk)
_charges: Final = msgspec.msgpack.Decoder(ChargesAnswer)


def encode(message: UsageAsk | UsageAnswer | ChargesAsk | ChargesAnswer) -> bytes:
    return _encode(message)


def decode_ask(data: bytes) -> UsageAsk:
    return _ask.decode(data)


def decode_answer(data: bytes) -> UsageAnswer:
    return _answer.decode(data)


def decode_charges_ask(data: bytes) -> ChargesAsk:
    return _charges_ask.decode(data)


def decode_charges(data: bytes) -> ChargesAnswer:
    return _charges.decode(data)
