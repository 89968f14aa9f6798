"""The inventory in one answer: all nodes with their devices, and how much of each is free.

Pure, from acknowledged facts. 10,000 devices fit into one message. Test:
tests/unit/test_inventory.py.
"""

from collections.abc import Iterable
from itertools import dropwhile, islice
from typing import Final

import msgspec

from libs.common.change import Change
from libs.common.life import gpu_life
from libs.common.life.node_life import REMOVED
from libs.common.model import WHOLE_GPU, GpuId, NodeId
from libs.common.state.cluster import Cluster, GpuView, Node

# Devices in one answer, which is one message (`bus.MESSAGE_BYTES_MAX`); a device takes at most
# about 70 bytes.
DEVICES_MAX: Final = 12_000
_encode: Final = msgspec.json.Encoder().encode

# A device: its UUID, its health or service, and its free share in hundredths.
Stock = tuple[GpuId, str, int]


class NodeStock(msgspec.Struct, frozen=True):
    """A node and its devices, in the vendor's order: [uuid, health, free share in hundredths].

    `model` names the models of the devices.
    """

    id: NodeId
    state: str
    model: str
    gpus: list[Stock]


class Inventory(msgspec.Struct, frozen=True):
    """Nodes in the order of their first registration, as of commit `seq`.

    `next`: the last node of this answer if more nodes follow; ask for those behind it.
    """

    nodes: list[NodeStock]
    next: NodeId | None
    seq: int


class Stocks:
    """The encoded parts of the inventory, one per node.

    A fact that changes a node encodes its part again, so the time of an answer does not depend on
    what happened before it.
    """

    def __init__(self) -> None:
        self._written: dict[NodeId, msgspec.Raw] = {}

    def follow(self, cluster: Cluster, changes: Iterable[Change]) -> None:
        """Update the parts of the nodes that these facts changed."""
        for node_id in dict.fromkeys([node_id for change in changes for node_id in change.nodes]):
            if node_id in self._written:
                self._write(cluster, cluster.nodes[node_id])

    def answer(self, cluster: Cluster, after: str = "") -> bytes:
        """Return an `Inventory` in JSON: the nodes behind `after`, as many as one answer holds."""
        parts: list[msgspec.Raw] = []
        room, last = DEVICES_MAX, NodeId("")
        for node in _behind(cluster, after):
            room -= len(node.gpus)
            if room < 0 and parts:
                return _encode({"nodes": parts, "next": last, "seq": cluster.seq})
            parts.append(self._written.get(node.node_id) or self._write(cluster, node))
            last = node.node_id
        return _encode({"nodes": parts, "next": None, "seq": cluster.seq})

    def _write(self, cluster: Cluster, node: Node) -> msgspec.Raw:
        written = self._written[node.node_id] = msgspec.Raw(_encode(_stock(cluster, node)))
        return written


def _behind(cluster: Cluster, after: str) -> list[Node]:
    nodes = iter(cluster.nodes.values())
    rest = islice(dropwhile(lambda node: node.node_id != after, nodes), 1, None) if after else nodes
    return [node for node in rest if node.state != REMOVED]


def _stock(cluster: Cluster, node: Node) -> NodeStock:
    views = [cluster.gpus[uuid] for uuid in node.gpus]
    gpus = [
        (uuid, _state(view), WHOLE_GPU - view.held)
        for uuid, view in zip(node.gpus, views, strict=True)
    ]
    return NodeStock(
        node.node_id,
        node.state,
        " + ".join(dict.fromkeys([view.gpu.model for view in views])),
        gpus,
    )


def _state(view: GpuView) -> str:
    """Return the device's service, or its health if the service is online."""
    return view.health if view.service == gpu_life.ONLINE else view.service
