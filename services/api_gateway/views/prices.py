"""The price list as the API shows it. Pure."""

import msgspec

from libs.common.state.cluster import Cluster
from services.api_gateway.times import rfc3339
from services.api_gateway.views.usage import money


class PriceShown(msgspec.Struct):
    """A price of one GPU for one hour, for models that contain the words of `name`.

    It counts from `since` to before `until` (null: until now). `price` is `micros_per_hour` in the
    currency.
    """

    name: str
    price: str
    currency: str
    micros_per_hour: int
    since: str | None
    until: str | None


class PriceList(msgspec.Struct):
    """The prices by name, each with those before it, the oldest first."""

    prices: list[PriceShown]
    seq: int


def prices_shown(cluster: Cluster, name: str = "") -> PriceList:
    """Show all prices, or those of one name."""
    shown = []
    for known in sorted(cluster.prices):
        kept = cluster.prices[known]
        ends = [price.from_ns for price in kept[1:]]
        for price, end_ns in zip(kept, [*ends, 0], strict=True):
            if price.currency and name in ("", known):
                shown.append(
                    PriceShown(
                        name=known,
                        price=money(price.micros_per_hour),
                        currency=price.currency,
                        micros_per_hour=price.micros_per_hour,
                        since=rfc3339(price.from_ns),
                        until=rfc3339(end_ns),
                    )
                )
    return PriceList(shown, cluster.seq)
