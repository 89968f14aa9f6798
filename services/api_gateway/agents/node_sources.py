"""Orders the nodes from which another node may fetch, the nearest first.

Pure. Nodes of the same measured rack come first. Each asking node has its own order of the others,
so that several of them spread over all sources. Tests: tests/unit/test_weight_sources.py.
"""

from collections.abc import Iterable
from hashlib import sha256

from libs.common.model import NodeId
from libs.common.state.cluster import Cluster


def nearest(cluster: Cluster, node_id: NodeId, found: Iterable[NodeId]) -> list[NodeId]:
    """Return the nodes in the order in which `node_id` asks them."""
    rack = cluster.nodes[node_id].measured_rack

    def order(each: NodeId) -> tuple[bool, bytes]:
        is_near = bool(rack) and cluster.nodes[each].measured_rack == rack
        return not is_near, sha256(f"{node_id}/{each}".encode()).digest()

    return sorted(found, key=order)


def takes_links(cluster: Cluster, node_id: NodeId) -> bool:
    """Return whether other nodes can open links to this one."""
    node = cluster.nodes.get(node_id)
    return node is not None and node.usable and not node.revoked and bool(node.link_address)
