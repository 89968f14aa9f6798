"""Facts of the gateways about nodes that are kept for somebody, or for nobody, during some time.

Pure; part of the union in `facts.py`.
"""

from libs.common.facts.fact import Fact
from libs.common.model import NodeId, TenantId


class ReservationSet(Fact, frozen=True, tag="reservation.set"):
    """From `start_ns` to `end_ns` (the wall clock) these nodes are only for jobs that name the
    reservation, of these tenants or users; where neither are named it is a maintenance.

    One of the same name is exchanged.
    """

    reservation: str
    nodes: tuple[NodeId, ...]
    start_ns: int
    end_ns: int
    tenants: tuple[TenantId, ...] = ()
    users: tuple[str, ...] = ()
    user: str = ""


class ReservationCleared(Fact, frozen=True, tag="reservation.cleared"):
    """It is there no more, whether it had begun or not."""

    reservation: str
    user: str = ""
