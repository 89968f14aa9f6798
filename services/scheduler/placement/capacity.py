"""What is free, by node, indexed so that the best fit is found without a search.

Pure. Derived from the cluster's ledger and never compared: `refresh` looks at one node again after a fact touched it.
Only usable nodes and healthy, present devices count. A set of nodes is an integer, one bit each in the order of their first
registration: its lowest bit is the same for every reader of the log, whatever way the set came to be.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from libs.common import gpu_life
from libs.common.cluster import Cluster, GpuView, Node, is_leaving, node_gpus
from libs.common.model import GPUS_PER_NODE_MAX, WHOLE_GPU, GpuId, NodeId
from services.scheduler.placement.circles import circle_on


def bits(nodes: int) -> Iterator[int]:
    """The indexes of the bits that are set, lowest first."""
    while nodes:
        lowest = nodes & -nodes
        yield lowest.bit_length() - 1
        nodes ^= lowest


class Part(NamedTuple):
    """What is free of a partly held device, in hundredths, and to whom it is open (`circles.py`)."""

    free: int
    circle: str


class Capacity:
    """`by_free[n]` are the nodes with n wholly free devices, as bits; `nodes` and `index` say which node a bit is; `shared` are
    the partly held devices, by node.

    `version` grows with every change that could let a waiting job start.
    """

    def __init__(self) -> None:
        self.nodes: Final[list[NodeId]] = []
        self.index: Final[dict[NodeId, int]] = {}
        self.by_free: Final[list[int]] = [0] * (GPUS_PER_NODE_MAX + 1)
        self.whole: Final[dict[NodeId, list[GpuId]]] = {}
        self.shared: Final[dict[NodeId, dict[GpuId, Part]]] = {}
        self.sizes: Final[dict[NodeId, int]] = {}
        self.version = 0
        # Answers of `choose.possible` as long as no node's size changes, by (nodes, gpus).
        self.possible: Final[dict[tuple[int, int], bool]] = {}

    def refresh(self, cluster: Cluster, node_id: NodeId) -> None:
        """Look at one node again. Nodes come here in the order of their first registration, as the cluster holds them."""
        if node_id not in self.index:
            self.index[node_id] = len(self.nodes)
            self.nodes.append(node_id)
        self._forget(node_id)
        node = cluster.nodes[node_id]
        self.version += 1
        size = len(_placeable(cluster, node)) if node.usable and not is_leaving(cluster, node_id) else -1
        if size != self.sizes.get(node_id, -1):
            self.possible.clear()
        self.sizes.pop(node_id, None)
        if size >= 0:
            self.sizes[node_id] = size
            self._index(cluster, node)

    def _forget(self, node_id: NodeId) -> None:
        old = self.whole.pop(node_id, None)
        if old is not None:
            self.by_free[len(old)] ^= 1 << self.index[node_id]
        self.shared.pop(node_id, None)

    def _index(self, cluster: Cluster, node: Node) -> None:
        free, shared = [], {}
        for view in _placeable(cluster, node):
            held = view.held
            if held == 0:
                free.append(view.gpu.uuid)
            elif held < WHOLE_GPU:
                shared[view.gpu.uuid] = Part(WHOLE_GPU - held, circle_on(cluster, view))
        self.whole[node.node_id] = free
        self.by_free[len(free)] |= 1 << self.index[node.node_id]
        if shared:
            self.shared[node.node_id] = shared


def _placeable(cluster: Cluster, node: Node) -> list[GpuView]:
    return [view for view in node_gpus(cluster, node) if view.present and view.health in gpu_life.USABLE][:GPUS_PER_NODE_MAX]
