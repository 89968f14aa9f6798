"""The price list, and the cost of what was charged.

Pure, in integers only: shares in hundredths of a GPU times milliseconds, money in millionths of the
currency. A price counts from its moment on, so a charge that spans a new price is split there. The
parts of an amount add up to it exactly. Tests: tests/unit/test_prices.py.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from libs.common.facts.efficiency_facts import ChargePart
from libs.common.model import GPU_HOUR_SHARE_MS

# The name of the price for GPUs that no other price fits.
ANY: Final = "any"
# Names in the price list, and prices that are kept for each.
NAMES_MAX: Final = 100
KEPT_MAX: Final = 64
# Parts of one charge for one model of GPU. Moments before the newest ones are left out.
PIECES_MAX: Final = 8
_WORD: Final = re.compile(r"[a-z0-9.]+")


class Price(msgspec.Struct, frozen=True):
    """The price of one GPU for one hour from `from_ns` on; without a currency there is none."""

    from_ns: int
    micros_per_hour: int
    currency: str


NO_PRICE: Final = Price(0, 0, "")

PriceList = Mapping[str, Sequence[Price]]


def removed_longest(prices: PriceList) -> str:
    """Return the name whose price was removed longest ago; empty if none is removed now."""
    removed = [(kept[-1].from_ns, name) for name, kept in prices.items() if not kept[-1].currency]
    return min(removed, default=(0, ""))[1]


def has_room(prices: PriceList) -> bool:
    """Return whether the list takes a new name, if need be instead of a removed one."""
    return len(prices) < NAMES_MAX or removed_longest(prices) != ""


def words_of(text: str) -> tuple[str, ...]:
    """Return the words of a model's name or of a price's name, in lower case."""
    return tuple(_WORD.findall(text.lower()))


def fits(name: str, gpu: str) -> bool:
    """Return whether a price of this name is for this model of GPU: its words stand there in a
    row.
    """
    words, wanted = words_of(gpu), words_of(name)
    spans = range(len(words) - len(wanted) + 1)
    return name == ANY or any(words[at : at + len(wanted)] == wanted for at in spans)


def in_force(prices: PriceList, gpu: str, at_ns: int) -> Price:
    """Return the price of a model of GPU at a time; that of the name with the most words."""
    found = [
        (name != ANY, len(words_of(name)), name, price)
        for name in prices
        if fits(name, gpu) and (price := _newest(prices[name], at_ns)).currency
    ]
    return max(found)[3] if found else NO_PRICE


def _newest(prices: Sequence[Price], at_ns: int) -> Price:
    return next((price for price in reversed(prices) if price.from_ns <= at_ns), NO_PRICE)


def spread(total: int, weights: Sequence[int]) -> list[int]:
    """Split an amount by weights into parts that add up to it exactly.

    No part is negative if none of the arguments is. Without any weight all goes to the last part.
    """
    whole, upto, given = sum(weights), 0, 0
    parts = []
    for weight in weights:
        upto += weight
        reached = total * upto // whole if whole else 0
        parts.append(reached - given)
        given = reached
    parts[-1] += total - given
    return parts


def priced(
    models: Iterable[tuple[str, int]], prices: PriceList, began_ns: int, ended_ns: int
) -> tuple[ChargePart, ...]:
    """Return the parts of a charge: each model's share, split where its price changed."""
    return tuple(
        _part(gpu, share_ms, price)
        for gpu, share in models
        for share_ms, price in _pieces(gpu, share, prices, began_ns, ended_ns)
    )


def _pieces(
    gpu: str, share_ms: int, prices: PriceList, began_ns: int, ended_ns: int
) -> list[tuple[int, Price]]:
    """Return the parts of one model's share by the prices that were in force meanwhile."""
    moments = sorted(
        {
            price.from_ns
            for name, each in prices.items()
            for price in each
            if began_ns < price.from_ns < ended_ns and fits(name, gpu)
        }
    )
    begins = [began_ns, *moments[-(PIECES_MAX - 1) :]]
    ends = [*begins[1:], max(ended_ns, begins[-1])]
    lengths = [end - begin for begin, end in zip(begins, ends, strict=True)]
    shares = spread(share_ms, lengths)
    return list(zip(shares, (in_force(prices, gpu, begin) for begin in begins), strict=True))


def _part(gpu: str, share_ms: int, price: Price) -> ChargePart:
    return ChargePart(
        gpu=gpu,
        share_ms=share_ms,
        micros_per_hour=price.micros_per_hour,
        cost_micros=cost(share_ms, price.micros_per_hour),
        currency=price.currency,
    )


def cost(share_ms: int, micros_per_hour: int) -> int:
    """Return the cost of a share in millionths of the currency, rounded half up."""
    return (2 * share_ms * micros_per_hour + GPU_HOUR_SHARE_MS) // (2 * GPU_HOUR_SHARE_MS)
