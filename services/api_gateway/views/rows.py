"""Jobs, nodes and rows of the fleet as JSON, encoded once for all clients that may see the same.

A row is kept while no commit follows. So a change that a thousand clients watch is encoded once, or
once for each tenant where tenants see different things. Tests: tests/unit/test_rows.py.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from libs.common.model import JobId, NodeId
from services.api_gateway.access import roles
from services.api_gateway.access.roles import Principal
from services.api_gateway.views.fleet import fleet_row
from services.api_gateway.views.jobs import job_shown
from services.api_gateway.views.nodes import node_seen

if TYPE_CHECKING:
    from services.api_gateway.gateway import Gateway

JOB: Final = "job"
NODE: Final = "node"
FLEET: Final = "fleet"
KEPT_BYTES_MAX: Final = 16 << 20

_encode: Final = msgspec.json.Encoder().encode


class Rows:
    """The rows of one gateway as of its last commit."""

    def __init__(self, gateway: "Gateway") -> None:
        self.gateway = gateway
        self.encoded = 0
        self._seq = -1
        self._bytes = 0
        self._kept: dict[tuple[str, str, str | None], bytes] = {}

    def job(self, principal: Principal, job_id: JobId) -> bytes | None:
        """Return a job as JSON; None if it is gone or the principal may not see it."""
        cluster = self.gateway.cluster
        job = cluster.jobs.get(job_id)
        if job is None or not roles.sees(principal, job.tenant):
            return None
        return self._row((JOB, job_id, None), lambda: job_shown(cluster, job))

    def node(self, principal: Principal, node_id: NodeId) -> bytes | None:
        """Return a node as the principal may see it; None if it never registered."""
        cluster, pulse = self.gateway.cluster, self.gateway.pulse
        node = cluster.nodes.get(node_id)
        if node is None:
            return None
        return self._row(
            (NODE, node_id, roles.eyes(principal)),
            lambda: node_seen(principal, cluster, node, pulse.heard_ns(node_id)),
        )

    def fleet(self, principal: Principal, node_id: NodeId) -> bytes | None:
        """Return a node's row of the fleet; None if it never registered."""
        cluster = self.gateway.cluster
        node = cluster.nodes.get(node_id)
        if node is None:
            return None
        return self._row(
            (FLEET, node_id, roles.eyes(principal)), lambda: fleet_row(principal, cluster, node)
        )

    def _row(self, name: tuple[str, str, str | None], show: Callable[[], msgspec.Struct]) -> bytes:
        if self._seq != self.gateway.cluster.seq or self._bytes > KEPT_BYTES_MAX:
            self._seq, self._bytes = self.gateway.cluster.seq, 0
            self._kept = {}
        row = self._kept.get(name)
        if row is None:
            row = self._kept[name] = _encode(show())
            self._bytes += len(row)
            self.encoded += 1
        return row
