"""Requests about the price list and about idle GPUs.

Pure. Money is kept in millionths of the currency. Tests: tests/unit/test_price_intents.py.
"""

import re
from decimal import Decimal
from typing import Final

import msgspec

from libs.common.errors import Refused
from libs.common.facts import IdlePolicySet, PriceSet
from libs.common.model import TenantId
from libs.common.prices import ANY, NAMES_MAX, Price, has_room
from libs.common.state.cluster import Cluster
from services.api_gateway.intents.fields import check_known, check_one_of, check_range, convert
from services.api_gateway.problems import Problem
from services.api_gateway.times import duration_s

MICROS: Final = 1_000_000
# The highest price of one GPU for one hour, in the currency.
PRICE_MAX: Final = 1_000_000
# What happens to jobs whose GPUs are idle.
OFF: Final = "off"
WARN: Final = "warn"
CHECKPOINT: Final = "checkpoint"
RELEASE: Final = "release"
ACTIONS: Final = (OFF, WARN, CHECKPOINT, RELEASE)
# Agents report idle GPUs after a minute; a shorter time would mean the same.
IDLE_S_MIN: Final = 60
IDLE_S_MAX: Final = 30 * 86_400
IDLE_S: Final = 1_800
GRACE_S: Final = 300
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9 ._-]{0,62}")
_CURRENCY: Final = re.compile(r"[A-Z]{3}")


class PriceBody(msgspec.Struct, frozen=True, kw_only=True):
    """The price of one GPU for one hour, for example "2.50", with at most six decimal places.

    `currency` is its code of three letters. Left out, it is that of the price that was set last.
    """

    price: str | int | float
    currency: str = ""


class IdleBody(msgspec.Struct, frozen=True, kw_only=True):
    """The policy for a tenant's jobs whose GPUs are all idle.

    `action`: off, warn, checkpoint or release. The user is warned after `idle_for`, and a job is
    ended `grace` later. Both are durations.
    """

    action: str
    idle_for: int | str = IDLE_S
    grace: int | str = GRACE_S


PRICE_FIELDS: Final = PriceBody.__struct_fields__
IDLE_FIELDS: Final = IdleBody.__struct_fields__


def price(cluster: Cluster, body: object, name: str, user: str) -> PriceSet:
    """Return the fact for `PUT /v1/prices/{name}`. Raises Refused, and Problem 409 for too many."""
    if not _NAME.fullmatch(name):
        raise Refused(
            f"price: {name[:64]!r} is not the name of a GPU: write words of its model in small "
            f'letters, for example h100, or "{ANY}" for all others'
        )
    if name not in cluster.prices and not has_room(cluster.prices):
        raise Problem(409, f"the price list has {NAMES_MAX} names: use or remove one of them")
    if not isinstance(body, dict) or "price" not in body:
        raise Refused('price: missing: give the price of one GPU for one hour, for example "2.50"')
    check_known(body, PRICE_FIELDS, "field")
    request = convert(dict(body), PriceBody)
    currency = request.currency or last_currency(cluster)
    if not currency:
        raise Refused(
            "currency: missing, and no earlier price has one: give its code of three letters, for "
            "example EUR"
        )
    if not _CURRENCY.fullmatch(currency.upper()):
        raise Refused(
            f"currency: {currency[:16]!r} is not a currency: give its code of three letters, for "
            "example EUR"
        )
    return PriceSet(
        name=name, micros_per_hour=micros_of(request.price), currency=currency.upper(), user=user
    )


def last_currency(cluster: Cluster) -> str:
    """Return the currency of the price that was set last; empty without one."""
    known = [price for each in cluster.prices.values() for price in each if price.currency]
    return max(known, key=_moment).currency if known else ""


def _moment(price: Price) -> int:
    return price.from_ns


def micros_of(text: str | float) -> int:
    """Return a price in millionths. Raises Refused."""
    try:
        exact = Decimal(str(text)) * MICROS
    except ArithmeticError:
        exact = Decimal("NaN")
    if not exact.is_finite() or exact != exact.to_integral_value():
        raise Refused(
            f"price: {str(text)[:32]!r} is not a price: write a number with at most six decimal "
            "places, for example 2.50"
        )
    if not 0 <= exact <= PRICE_MAX * MICROS:
        raise Refused(f"price: {str(text)[:32]!r} is out of range: give 0 to {PRICE_MAX}")
    return int(exact)


def price_removal(cluster: Cluster, name: str, user: str) -> PriceSet:
    """Return the fact for `DELETE /v1/prices/{name}`. Raises Problem 404."""
    kept = cluster.prices.get(name)
    if kept is None or not kept[-1].currency:
        raise Problem(
            404, f"there is no price for {name[:64]!r}: list the prices with muster price"
        )
    return PriceSet(name=name, removed=True, user=user)


def idle_policy(body: object, tenant: TenantId, user: str) -> IdlePolicySet:
    """Return the fact for `PUT /v1/tenants/{name}/idle`. Raises Refused."""
    if not isinstance(body, dict) or "action" not in body:
        raise Refused(f"action: missing: give one of {', '.join(ACTIONS)}")
    check_known(body, IDLE_FIELDS, "field")
    request = convert(dict(body), IdleBody)
    check_one_of("action", request.action, ACTIONS)
    idle_s, grace_s = duration_s(request.idle_for, "idle_for"), duration_s(request.grace, "grace")
    check_range("idle_for", idle_s, IDLE_S_MIN, IDLE_S_MAX)
    check_range("grace", grace_s, 0, IDLE_S_MAX)
    return IdlePolicySet(
        tenant=tenant, action=request.action, idle_s=idle_s, grace_s=grace_s, user=user
    )
