"""Jobs, nodes and rows of the fleet as JSON, encoded once for all clients that may see the same.

A row is kept until a commit changes its job or node, and for AGE_NS at most, because it also shows
what other facts change, such as suspicions. So a change that a thousand clients watch is encoded
once, or once for each tenant where tenants see different things, and so is what they begin with.
Tests: tests/unit/test_rows.py.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

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
AGE_NS: Final = 1_000_000_000

_encode: Final = msgspec.json.Encoder().encode


class Row(NamedTuple):
    """A row as of a commit, made at a time of the machine's own clock."""

    data: bytes
    seq: int
    at_ns: int


class Rows:
    """The rows of one gateway."""

    def __init__(self, gateway: "Gateway") -> None:
        self.gateway = gateway
        self.encoded = 0
        self._bytes = 0
        self._kept: dict[tuple[str, str, str | None], Row] = {}

    def job(self, principal: Principal, job_id: JobId) -> bytes | None:
        """Return a job as JSON; None if it is gone or the principal may not see it."""
        cluster = self.gateway.cluster
        job = cluster.jobs.get(job_id)
        if job is None or not roles.sees(principal, job.tenant):
            return None
        seq = self.gateway.history.changed(job_id)
        return self._row((JOB, job_id, None), seq, lambda: job_shown(cluster, job))

    def node(self, principal: Principal, node_id: NodeId) -> bytes | None:
        """Return a node as the principal may see it; None if it never registered."""
        cluster, pulse = self.gateway.cluster, self.gateway.pulse
        node = cluster.nodes.get(node_id)
        if node is None:
            return None
        return self._row(
            (NODE, node_id, roles.eyes(principal)),
            self.gateway.waiting.node_seqs.get(node_id, 0),
            lambda: node_seen(principal, cluster, node, pulse.heard_ns(node_id)),
        )

    def fleet(self, principal: Principal, node_id: NodeId) -> bytes | None:
        """Return a node's row of the fleet; None if it never registered."""
        cluster = self.gateway.cluster
        node = cluster.nodes.get(node_id)
        if node is None:
            return None
        return self._row(
            (FLEET, node_id, roles.eyes(principal)),
            self.gateway.waiting.device_seqs.get(node_id, 0),
            lambda: fleet_row(principal, cluster, node),
        )

    def _row(
        self, name: tuple[str, str, str | None], seq: int, show: Callable[[], msgspec.Struct]
    ) -> bytes:
        """Return the kept row if nothing has changed since commit `seq`, else a new one."""
        now_ns = self.gateway.clock.boot_ns()
        kept = self._kept.pop(name, None)
        if kept is None or kept.seq != seq or now_ns - kept.at_ns > AGE_NS:
            self._bytes -= len(kept.data) if kept is not None else 0
            kept = Row(_encode(show()), seq, now_ns)
            self._bytes += len(kept.data)
            self.encoded += 1
        self._kept[name] = kept
        while self._bytes > KEPT_BYTES_MAX and len(self._kept) > 1:
            self._bytes -= len(self._kept.pop(next(iter(self._kept))).data)
        return kept.data
