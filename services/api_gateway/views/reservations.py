"""A reservation as the API shows it. Pure."""

import msgspec

from libs.common.state.reservation import Reservation
from services.api_gateway.access import roles
from services.api_gateway.access.roles import Principal
from services.api_gateway.times import rfc3339


class ReservationShown(msgspec.Struct):
    """From `start` to `end` the nodes are for jobs of these tenants or users that name it; in a
    `maintenance` for nobody's.

    `user` set it.
    """

    name: str
    nodes: tuple[str, ...]
    start: str | None
    end: str | None
    tenants: tuple[str, ...]
    users: tuple[str, ...]
    maintenance: bool
    user: str


def reservation_shown(kept: Reservation, principal: Principal) -> ReservationShown:
    """Show reserved nodes and times to everyone.

    Only the reservation's users and operators see for whom.
    """
    whole = roles.sees_all(principal)
    return ReservationShown(
        name=kept.name,
        nodes=kept.nodes,
        start=rfc3339(kept.start_ns),
        end=rfc3339(kept.end_ns),
        tenants=tuple(each for each in kept.tenants if roles.sees(principal, each)),
        users=tuple(each for each in kept.users if whole or each == principal.user),
        maintenance=kept.is_maintenance,
        user=kept.user if whole else "",
    )
