"""A reservation as the API shows it. Pure."""

import msgspec

from libs.common.state.reservation import Reservation, member_named
from services.api_gateway.access import roles
from services.api_gateway.access.roles import Principal
from services.api_gateway.times import rfc3339


class ReservationShown(msgspec.Struct):
    """A reservation or a maintenance.

    From `start` to `end` the nodes are for jobs of these `tenants` or `users` (TENANT/USER) that
    name the reservation; during a `maintenance` for no jobs. `user` is the one who set it.
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
    """Return the reservation without its tenants and users for other principals.

    Everyone sees its nodes and times.
    """
    whole = roles.sees_all(principal)
    own = (principal.user, member_named(principal.tenant, principal.user))
    return ReservationShown(
        name=kept.name,
        nodes=kept.nodes,
        start=rfc3339(kept.start_ns),
        end=rfc3339(kept.end_ns),
        tenants=tuple(each for each in kept.tenants if roles.sees(principal, each)),
        users=tuple(each for each in kept.users if whole or each in own),
        maintenance=kept.is_maintenance,
        user=kept.user if whole else "",
    )
