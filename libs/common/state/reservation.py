"""A reservation or a maintenance window of nodes, in the state. Pure."""

import msgspec

from libs.common.model import JobSpec, NodeId, TenantId


class Reservation(msgspec.Struct, frozen=True, cache_hash=True):
    """A reservation, with the fields of ReservationSet."""

    name: str
    nodes: tuple[NodeId, ...]
    start_ns: int
    end_ns: int
    tenants: tuple[TenantId, ...] = ()
    users: tuple[str, ...] = ()
    user: str = ""

    @property
    def is_maintenance(self) -> bool:
        return not self.tenants and not self.users

    def is_for(self, spec: JobSpec, tenant: TenantId, user: str) -> bool:
        """Return whether the job names this reservation and belongs to its tenants or users."""
        return spec.reservation == self.name and (tenant in self.tenants or user in self.users)
