"""A reservation as the fold has it: nodes that are kept for somebody, or for nobody (a
maintenance), during some time.

Pure.
"""

import msgspec

from libs.common.model import JobSpec, NodeId, TenantId


class Reservation(msgspec.Struct, frozen=True, cache_hash=True):
    """As ReservationSet says it."""

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
        """Whether a job of theirs runs in it: it must say so, and they must be among those for whom
        it is.
        """
        return spec.reservation == self.name and (tenant in self.tenants or user in self.users)
