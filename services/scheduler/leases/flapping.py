"""Nodes that are lost and return again and again: they lose the jobs that they get each time.

Pure. Such a node gets no new jobs for a time, which doubles with each further loss. Its jobs run
on. At most half of the nodes are held back: more at once are a fault of the network, or of the
control plane. Tests: tests/unit/test_flapping_nodes.py.
"""

from collections.abc import Collection
from typing import Final

from libs.common.facts import NodeHeldBack
from libs.common.model import NodeId
from libs.common.state.cluster import Cluster
from libs.common.state.node import Node

SECOND_NS: Final = 1_000_000_000
# So many losses by silence within an hour are too many.
LOSSES: Final = 3
WINDOW_NS: Final = 3_600 * SECOND_NS
HELD_PART: Final = 2


def is_unsteady(node: Node) -> bool:
    """Return whether the node is usable and was lost too often since it was held back last."""
    losses = node.losses_ns
    return (
        node.usable
        and len(losses) >= LOSSES
        and losses[-1] > node.held_for_ns
        and losses[-1] - losses[-LOSSES] <= WINDOW_NS
    )


def hold(node: Node, hold_s: int, now_ns: int) -> NodeHeldBack:
    """Return the fact that holds an unsteady node back, from `now_ns` (wall clock) on."""
    last = node.losses_ns[-1]
    recent = [at_ns for at_ns in node.losses_ns if last - at_ns <= WINDOW_NS]
    held_s = hold_s << (len(recent) - LOSSES)
    within_s = max(1, (last - recent[0]) // SECOND_NS)
    return NodeHeldBack(
        node_id=node.node_id,
        until_ns=now_ns + held_s * SECOND_NS,
        lost_ns=last,
        reason=f"it was lost {len(recent)} times within {within_s} s: no new jobs for {held_s} s",
    )


def may_hold(cluster: Cluster, held: Collection[NodeId]) -> bool:
    return HELD_PART * (len(held) + 1) <= len(cluster.nodes)
