"""A reservation or a maintenance window of nodes, in the state. Pure."""

import msgspec

from libs.common.model import JobSpec, NodeId, TenantId


class Reservation(msgspec.Struct, frozen=True, cache_hash=True):
    """A reservation, with the fields of ReservationSet.

    `users` are written TENANT/USER. A name alone, from an earlier version, is that user of every
    tenant.
    """

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
        return spec.reservation == self.name and self.admits(tenant, user)

    def admits(self, tenant: TenantId, user: str) -> bool:
        """Return whether the reservation is for jobs of this user of this tenant."""
        return (
            tenant in self.tenants
            or member_named(tenant, user) in self.users
            or (user in self.users and "/" not in user)
        )


def member_named(tenant: str, user: str) -> str:
    """Return how a reservation names a user of a tenant; no tenant's name contains a slash."""
    return f"{tenant}/{user}"
