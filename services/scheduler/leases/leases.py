"""Who was heard when, and what was promised to whom: the scheduler's side of the leases.

Pure: times are nanoseconds of one machine's boot clock, given as arguments. Nothing here is in the
log; a new term starts from the worst case, that the term before it has just answered every node. A
node's silence counts only while at least half of all nodes are heard.
"""

from typing import Final, Protocol

from libs.common.model import NodeId
from libs.common.state.cluster import Cluster, Node

MS: Final = 1_000_000
# A pause of this process longer than this makes it deaf: what it did not hear meanwhile proves
# nothing.
PAUSE_MAX_MS: Final = 1_000
# A node that was not heard for so many heartbeats is quiet: nothing is taken from it, but replicas
# of models begin elsewhere.
QUIET_BEATS: Final = 3


class Leadership(Protocol):
    """A quorum write that only says: the process of this term still reaches the log."""

    async def renew(self, epoch: int) -> None:
        """Raises Unavailable when it was not acknowledged, or a later term has written."""
        ...


class Leases:
    """Up to `floor` every node must be assumed to hold a lease; up to `extension_over` one that is
    not in `taken`, which are the nodes that have put a lease of this term into their lease file, in
    place of the long one of a planned stop.
    """

    def __init__(self) -> None:
        self.floor = 0
        self.extension_over = 0
        self.taken: dict[NodeId, None] = {}
        self.granted: dict[NodeId, int] = {}
        self.heard: dict[NodeId, int] = {}
        self.watched: dict[NodeId, tuple[bool, int]] = {}
        self.noticed: dict[NodeId, int] = {}
        self.listening_since = 0
        self.ticked = 0
        self.deaf = False

    def begin(self, cluster: Cluster, now: int) -> None:
        """A term began, or this process could not hear for a while: assume that every node was
        answered just now, by a leader of the last term.

        After a planned stop that answer was a long lease; when it was given is not known, for no
        two machines' clocks can be compared.
        """
        self.floor = now + (cluster.timing.lease_ms + cluster.timing.term_ms) * MS
        self.extension_over = max(
            self.floor, now + (cluster.extension_ms + cluster.timing.term_ms) * MS
        )
        self.taken.clear()
        self.ticked = self.listening_since = now

    def hear(self, cluster: Cluster, node_id: NodeId, now: int, taken: bool) -> None:
        """`taken`: the heartbeat names a lease of this term.

        Supervisors see that a moment later: the count begins again.
        """
        self.heard[node_id] = now
        if taken and node_id not in self.taken:
            self.taken[node_id] = None
            self.granted[node_id] = max(
                self.granted.get(node_id, 0), now + cluster.timing.lease_ms * MS
            )

    def grant(self, cluster: Cluster, node_id: NodeId, now: int) -> int:
        """HeadReservation a lease, counted here from now; returns its length in milliseconds."""
        self.granted[node_id] = now + cluster.timing.lease_ms * MS
        return cluster.timing.lease_ms

    def returned(self, cluster: Cluster, node_id: NodeId, now: int) -> None:
        """The log has taken that it came back: it is given leases from now on, so its silence
        counts from now on.
        """
        self._count_from(cluster, node_id, now)

    def extension_is_over(self, cluster: Cluster, now: int) -> bool:
        """Whether the long lease of a planned stop before this term can be held by
        nobody any more.
        """
        if not cluster.extension_ms:
            return False
        return now > self.extension_over or all(
            node.node_id in self.taken for node in cluster.nodes.values() if _counts(node)
        )

    def silent(self, cluster: Cluster, now: int) -> list[tuple[NodeId, int]]:
        """(node, incarnation) of the usable nodes whose last possible lease ended more than a
        margin ago; of a node that was replaced the last incarnation that was.
        """
        self._watch(cluster, now)
        if self._cannot_tell(cluster, now):
            return []
        margin = cluster.timing.margin_ms * MS
        return [
            (node.node_id, node.replaced[-1] if node.replaced else node.incarnation)
            for node in cluster.nodes.values()
            if _counts(node) and self._held_until(node.node_id) + margin < now
        ]

    def quiet(self, cluster: Cluster, now: int) -> list[NodeId]:
        """Usable nodes whose heartbeats stopped coming while this process could hear.

        Ask `silent` first.
        """
        if self.deaf:
            return []
        since = now - QUIET_BEATS * cluster.timing.heartbeat_ms * MS
        return [
            node.node_id
            for node in cluster.nodes.values()
            if node.usable and self._last_sign(node.node_id) < since
        ]

    def _last_sign(self, node_id: NodeId) -> int:
        return max(self.listening_since, self.heard.get(node_id, 0), self.noticed.get(node_id, 0))

    def _held_until(self, node_id: NodeId) -> int:
        """The latest end of a lease that the node may hold."""
        return max(
            self.floor,
            0 if node_id in self.taken else self.extension_over,
            self.granted.get(node_id, 0),
        )

    def _watch(self, cluster: Cluster, now: int) -> None:
        """The silence of a node that is new, came back or began again counts from now on: it may
        not have heard of it yet.

        So does that of an incarnation that was replaced, once: what replaced it is given no lease
        and may begin again as often as it likes.
        """
        for node in cluster.nodes.values():
            watch = (node.usable, node.replaced[-1] if node.replaced else node.incarnation)
            if _counts(node) and self.watched.get(node.node_id) != watch:
                self.watched[node.node_id] = watch
                self._count_from(cluster, node.node_id, now)

    def _count_from(self, cluster: Cluster, node_id: NodeId, now: int) -> None:
        self.noticed[node_id] = now
        self.granted[node_id] = max(
            self.granted.get(node_id, 0), now + cluster.timing.lease_ms * MS
        )

    def _cannot_tell(self, cluster: Cluster, now: int) -> bool:
        """Whether this process itself is the one that does not hear; while it is, and once after,
        every count starts again.
        """
        paused = now - self.ticked > PAUSE_MAX_MS * MS
        was_deaf, self.deaf = self.deaf, self._hears_too_few(cluster, now)
        self.ticked = now
        if paused or self.deaf or was_deaf:
            self.floor = max(self.floor, now + cluster.timing.lease_ms * MS)
            self.listening_since = now
            return True
        return False

    def _hears_too_few(self, cluster: Cluster, now: int) -> bool:
        since = now - 3 * cluster.timing.heartbeat_ms * MS
        usable = [node.node_id for node in cluster.nodes.values() if node.usable]
        heard = sum(1 for node_id in usable if self.heard.get(node_id, 0) >= since)
        return 2 * heard < len(usable)


def _counts(node: Node) -> bool:
    """Whether an incarnation of it is not known to be over."""
    return node.usable or bool(node.replaced)
