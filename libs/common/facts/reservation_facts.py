"""Facts of the gateways about reservations and maintenance windows of nodes.

Pure; part of the union in `facts/__init__.py`.
"""

from libs.common.facts.fact import Fact
from libs.common.model import NodeId, TenantId


class ReservationSet(Fact, frozen=True, tag="reservation.set"):
    """An operator reserved nodes from `start_ns` to `end_ns` (wall clock).

    In that time only jobs that name the reservation, of these tenants or users, run on the nodes.
    Without tenants and users it is a maintenance window: no job runs there. The fact replaces a
    reservation of the same name.
    """

    reservation: str
    nodes: tuple[NodeId, ...]
    start_ns: int
    end_ns: int
    tenants: tuple[TenantId, ...] = ()
    users: tuple[str, ...] = ()
    user: str = ""


class ReservationCleared(Fact, frozen=True, tag="reservation.cleared"):
    """An operator removed a reservation, whether it had begun or not."""

    reservation: str
    user: str = ""
