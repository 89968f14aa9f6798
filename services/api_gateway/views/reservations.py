"""A reservation as the API shows it. Pure."""

import msgspec

from libs.common.reservation import Reservation
from services.api_gateway.times import rfc3339


class ReservationShown(msgspec.Struct):
    """From `start` to `end` the nodes are for jobs of these tenants or users that name it; in a `maintenance` for nobody's. `user` set
    it.
    """

    name: str
    nodes: tuple[str, ...]
    start: str | None
    end: str | None
    tenants: tuple[str, ...]
    users: tuple[str, ...]
    maintenance: bool
    user: str


def reservation_shown(kept: Reservation) -> ReservationShown:
    return ReservationShown(
        name=kept.name,
        nodes=kept.nodes,
        start=rfc3339(kept.start_ns),
        end=rfc3339(kept.end_ns),
        tenants=kept.tenants,
        users=kept.users,
        maintenance=kept.is_maintenance,
        user=kept.user,
    )
