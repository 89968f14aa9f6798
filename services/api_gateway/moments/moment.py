"""A state of the cluster that a read answers from: the present one, or that of a past commit."""

from collections.abc import Callable

from libs.common import subjects
from libs.common.model import NodeId
from libs.common.state.cluster import Cluster, Endpoint
from services.api_gateway.serving.late_binding import LateBinding
from services.api_gateway.views.index import JobIndex
from services.api_gateway.views.job_lookup import JobLookup
from services.api_gateway.vitals import Pulse


class Moment:
    """The state, its indexes, and what belongs to its time.

    `pulse` and `queues` are data beside the log, which only the present has: without them the
    scheduler's report, the nodes' last heartbeats and the queues of requests are not known.
    """

    def __init__(
        self,
        cluster: Cluster,
        index: JobIndex,
        lookup: JobLookup,
        now_ns: Callable[[], int],
        pulse: Pulse | None = None,
        queue_rules: Callable[[str], LateBinding[Endpoint] | None] = lambda name: None,
    ) -> None:
        self.cluster = cluster
        self.index = index
        self.lookup = lookup
        self.now_ns = now_ns
        self.pulse = pulse
        self.queue_rules = queue_rules

    @property
    def seq(self) -> int:
        """The last commit of the state."""
        return self.cluster.seq

    def heard_ns(self, node_id: NodeId) -> int:
        """Return the time of the last heartbeat of the node; 0 if that is not known."""
        return self.pulse.heard_ns(node_id) if self.pulse is not None else 0

    def is_unheard(self, node_id: NodeId) -> bool:
        """Return whether the node sent no heartbeat for a lease and its margin."""
        return self.pulse is not None and self.pulse.is_unheard(node_id)


def time_of(cluster: Cluster) -> int:
    """Return the time of the state's last commit, by the clocks of the control plane.

    The clocks of nodes are not trusted.
    """
    return max(
        (
            mark.at_ns
            for subject, mark in cluster.writers.items()
            if subjects.writer_kind(subject) != subjects.NODE_KIND
        ),
        default=0,
    )
