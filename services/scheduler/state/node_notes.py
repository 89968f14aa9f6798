"""Indexes over the nodes: those to declare lost, to take back or to remove, and their total size.

Pure, and derived: a part of `State`.
"""

from libs.common.model import WHOLE_GPU, NodeId
from libs.common.state.cluster import Cluster, Node, is_leaving, is_removed, owes_nothing
from libs.common.state.ordering import MIB
from services.scheduler.leases import flapping
from services.scheduler.policies import Sizes


class NodeNotes:
    """Nodes to take back, to declare lost or to remove, and the size of the cluster.

    `returning` may be taken back, and `dead` were declared dead by an operator; both are bits, as
    in `Capacity.index`. `leaving` are registered nodes that are still to be removed. `unsteady` are
    to be held back, and `held` are. `sizes` is the
    sum over all nodes that take jobs.
    """

    def __init__(self) -> None:
        self.returning = 0
        self.dead = 0
        self.leaving: dict[NodeId, None] = {}
        self.unsteady: dict[NodeId, None] = {}
        self.held: dict[NodeId, None] = {}
        self.sizes: Sizes = (0, 0, 0)
        self._size_of: dict[NodeId, Sizes] = {}

    def note(self, cluster: Cluster, node_id: NodeId, index: int) -> None:
        """Note that a fact touched this node."""
        node = cluster.nodes[node_id]
        back = (
            0 < node.lost < node.incarnation
            and node.returned <= node.lost
            and owes_nothing(cluster, node)
        )
        bit = 1 << index
        self.returning = self.returning | bit if back else self.returning & ~bit
        self.dead = self.dead | bit if node.declared_dead else self.dead & ~bit
        if is_leaving(cluster, node_id) and not is_removed(cluster, node_id):
            self.leaving[node_id] = None
        else:
            self.leaving.pop(node_id, None)
        _note_in(self.unsteady, node_id, flapping.is_unsteady(node))
        _note_in(self.held, node_id, node.is_held)
        self._note_size(node)

    def _note_size(self, node: Node) -> None:
        size = (
            (len(node.gpus) * WHOLE_GPU, node.cpus_milli, node.memory_bytes // MIB)
            if node.takes_work
            else (0, 0, 0)
        )
        old = self._size_of.get(node.node_id, (0, 0, 0))
        if size != old:
            self._size_of[node.node_id] = size
            self.sizes = (
                self.sizes[0] + size[0] - old[0],
                self.sizes[1] + size[1] - old[1],
                self.sizes[2] + size[2] - old[2],
            )


def _note_in(nodes: dict[NodeId, None], node_id: NodeId, belongs: bool) -> None:
    if belongs:
        nodes[node_id] = None
    else:
        nodes.pop(node_id, None)
