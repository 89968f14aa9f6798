"""Chooses the nodes from which another node may fetch kept weights.

Pure. `node_sources.py` orders them. Tests: tests/unit/test_weight_sources.py.
"""

from collections.abc import Collection
from typing import Final

from libs.common.errors import Refused
from libs.common.life import kept_life
from libs.common.model import NodeId
from libs.common.state.cluster import Cluster
from libs.common.state.kept import Kept, kept_key
from services.api_gateway.agents.node_sources import nearest, takes_links

# States from which an entry may become a source without a new request.
COMING: Final = (kept_life.REQUESTED, kept_life.MEASURED, kept_life.FILLING)


def own_request(cluster: Cluster, node_id: NodeId, model: str, request: int) -> Kept:
    """Return the request if the node has an entry of it. Raises Refused."""
    kept = cluster.kept.get(kept_key(model, kept_life.HOST))
    entry = kept.entries.get(node_id) if kept is not None and kept.request == request else None
    if kept is None or entry is None or entry.state == kept_life.EVICTED:
        raise Refused(
            f"node {node_id} has no entry of request {request} to keep model {model[:64]!r}"
        )
    return kept


def sources(
    cluster: Cluster, kept: Kept, node_id: NodeId, avoided: Collection[NodeId]
) -> list[NodeId]:
    """Return the nodes that have the weights and take links, the nearest first."""
    ready = [
        each
        for each, entry in kept.entries.items()
        if entry.state == kept_life.READY
        and each not in (node_id, *avoided)
        and takes_links(cluster, each)
    ]
    return nearest(cluster, node_id, ready)


def may_come(cluster: Cluster, kept: Kept, node_id: NodeId, avoided: Collection[NodeId]) -> bool:
    """Return whether another entry may become a source soon."""
    return any(
        entry.state in COMING and each not in (node_id, *avoided) and takes_links(cluster, each)
        for each, entry in kept.entries.items()
    )
