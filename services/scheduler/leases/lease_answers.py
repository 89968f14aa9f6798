"""The scheduler's answer to a heartbeat: a verdict on the agent's incarnation, and a lease.

Pure.
"""

from typing import Final

from msgspec.structs import replace

from libs.common.messages import REMOVED, RESTORED, Heartbeat, Lease
from libs.common.state.cluster import Cluster, Node, is_removed, shortest_heartbeat_ms
from services.scheduler.orders.orders import node_digest

OK: Final = "ok"


def verdict_on(acked: Cluster, beat: Heartbeat, ahead: Node | None) -> str:
    """Return OK, or why this incarnation gets no lease: removed, restored, unknown or lost.

    `ahead` is the node in the working state: a loss counts from its decision on.
    """
    node = acked.nodes.get(beat.node_id)
    if is_removed(acked, beat.node_id):
        return REMOVED
    if acked.life and node is not None and node.registered_seq <= acked.restored_seq:
        return RESTORED
    if node is None or ahead is None or beat.incarnation > node.incarnation:
        return "unknown"
    if beat.incarnation < node.incarnation or beat.incarnation <= max(node.lost, ahead.lost):
        return "lost"
    return OK


def lease_answer(
    acked: Cluster, epoch: int, beat: Heartbeat, verdict: str, lease_ms: int, roster_digest: str
) -> Lease:
    """Return the message, from acknowledged facts alone."""
    node = acked.nodes.get(beat.node_id)
    digest = node_digest(acked, beat.node_id) if node is not None else ""
    known = (
        (node.incarnation, bool(node.distrusted), node.registered_seq) if node is not None else ()
    )
    common = (shortest_heartbeat_ms(acked), digest, acked.seq, roster_digest, *known)
    lease = Lease(epoch, verdict, beat.sent_boot_ns, lease_ms, *common)
    return replace(lease, life=acked.life, restore_id=acked.restore_id)
