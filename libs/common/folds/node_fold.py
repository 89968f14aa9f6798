"""Apply facts about nodes to the cluster's state: one function per kind, named after the kind.

Pure and total, called by `fold.apply` only. `lost` and `returned` are highest incarnations, never
toggles, so a NodeLost and a NodeRegistered that crossed on the wire lead to the same state in every
order.
"""

from collections.abc import Collection
from typing import Final

from libs.common import facts as f
from libs.common import reasons
from libs.common.change import IGNORED, Change, Stamp
from libs.common.folds import claim_fold, member_fold, membership_fold
from libs.common.folds.device_fold import follow_devices, forget_health
from libs.common.life import node_life
from libs.common.model import ID_PATTERN, JobId, NodeId, attempt_key
from libs.common.state.cluster import Cluster, Node, is_removed
from libs.common.state.node import LINKS_KEPT, LOSSES_KEPT, TEXT_MAX, TRANSPORTS, LinkView

# A registration further ahead than this of the last one is ignored: one forged number must not lock
# out the agent's own.
INCARNATIONS_MAX: Final = 1 << 20


def registered(cluster: Cluster, fact: f.NodeRegistered, stamp: Stamp) -> Change:
    node = cluster.nodes.get(fact.node_id)
    if node is not None and fact.incarnation <= node.incarnation:
        return IGNORED
    if fact.incarnation > (node.incarnation if node is not None else 0) + INCARNATIONS_MAX:
        return IGNORED
    replaced = node is not None and _elsewhere(node, fact)
    if node is None:
        removed = is_removed(cluster, fact.node_id)
        node = cluster.nodes[fact.node_id] = Node(
            fact.node_id, node_life.REMOVED if removed else ""
        )
        node.revoked = membership_fold.revocation(cluster, fact.node_id)
    elif replaced:
        node.severed = node.incarnation
        if node.unguarded and node.incarnation > node.ended:
            node.unproved.append(node.incarnation)
        if node.incarnation > node.lost:
            node.replaced.append(node.incarnation)
    elif node.severed <= node.gone:
        node.gone = fact.incarnation - 1
    node.incarnation, node.directory = fact.incarnation, fact.directory
    node.address, node.boot_id, node.version = fact.address, fact.boot_id, fact.version
    node.simulated = fact.simulated
    node.registered_ns, node.registered_seq = stamp.at_ns, stamp.seq
    node.peer_address, node.peer_key = fact.peer_address, fact.peer_key
    node.cpus_milli, node.memory_bytes, node.labels = (
        fact.cpus_milli,
        fact.memory_bytes,
        fact.labels,
    )
    node.rack, node.spine, node.sockets, node.isolation = (
        fact.rack,
        fact.spine,
        fact.sockets,
        fact.isolation,
    )
    node.takes_controls, node.drivers, node.distrusted = fact.takes_controls, fact.drivers, ""
    node.fabric_address, node.link_address = fact.fabric_address, fact.link_address
    node.keeps, node.fence_ms = fact.keeps, fact.fence_ms
    node.unguarded, node.armed_ms = "", 0
    node.accounted = {attempt_key(ref.job_id, ref.attempt): ref for ref in fact.attempts}
    node.absent, node.left_out = fact.absent, fact.left_out
    node.transport, node.transport_why = fact.transport, fact.transport_why
    node.links = {}
    others = claim_fold.take_inventory(cluster, node, fact, stamp)
    if replaced and fact.tells_health:
        forget_health(cluster, node)
        claim_fold.forget_reports(cluster, node)
    if node.replaced:
        node.state = node_life.NODE_LIFE.get((node.state, "node.replaced"), node.state)
    else:
        follow_devices(cluster, node, "node.registered")
    _account(cluster, node)
    return _lose_members(cluster, node, (fact.node_id, *others))


def link_chosen(cluster: Cluster, fact: f.LinkChosen, stamp: Stamp) -> Change:
    """Keep what the node's last links use. The other node may be unknown here."""
    node = cluster.nodes.get(fact.node_id)
    if (
        node is None
        or fact.incarnation != node.incarnation
        or fact.transport not in TRANSPORTS
        or ID_PATTERN.fullmatch(fact.peer) is None
    ):
        return IGNORED
    node.links.pop(fact.peer, None)
    node.links[fact.peer] = LinkView(fact.transport, fact.why[:TEXT_MAX])
    if len(node.links) > LINKS_KEPT:
        del node.links[next(iter(node.links))]
    return Change((), (fact.node_id,))


def watchdog_changed(cluster: Cluster, fact: f.WatchdogChanged, stamp: Stamp) -> Change:
    node = cluster.nodes.get(fact.node_id)
    if node is None or fact.incarnation != node.incarnation:
        return IGNORED
    node.unguarded, node.armed_ms = fact.missing[:TEXT_MAX], fact.armed_ms
    return Change((), (fact.node_id,))


def lost(cluster: Cluster, fact: f.NodeLost, stamp: Stamp) -> Change:
    node = cluster.nodes.get(fact.node_id)
    if node is None or fact.incarnation > node.incarnation:
        return IGNORED
    dead = fact.incarnation if fact.reason == node_life.DECLARED_DEAD else 0
    ended = _ended(node, fact)
    if fact.incarnation <= node.lost and dead <= node.dead and ended <= node.ended:
        return IGNORED
    node.lost, node.dead = max(node.lost, fact.incarnation), max(node.dead, dead)
    node.ended = max(node.ended, ended)
    if fact.reason in (node_life.SILENT, node_life.UNGUARDED):
        node.losses_ns = (*node.losses_ns, fact.lost_ns or stamp.at_ns)[-LOSSES_KEPT:]
    node.replaced = [each for each in node.replaced if each > node.lost]
    node.unproved = [each for each in node.unproved if each > node.ended]
    node.reason = fact.reason
    if node.returned <= node.lost:
        node.state = node_life.NODE_LIFE.get((node.state, "node.lost"), node.state)
    moved = claim_fold.settle(cluster, node)
    change = _lose_members(cluster, node, (fact.node_id, *moved), fact.over)
    return Change(tuple(node.members), change.nodes)


def _ended(node: Node, fact: f.NodeLost) -> int:
    """Return the highest incarnation whose jobs have ended for sure by this loss; 0: none.

    The end of a replaced incarnation's lease proves nothing if its lease watchdog was missing.
    """
    is_replaced = fact.reason == reasons.REPLACED
    unproved = is_replaced and any(each <= fact.incarnation for each in node.unproved)
    return 0 if unproved or fact.reason == node_life.UNGUARDED else fact.incarnation


def declared_dead(cluster: Cluster, fact: f.NodeDeclaredDead, stamp: Stamp) -> Change:
    """Store the verdict.

    Only the scheduler records the consequences, because it declares losses. A verdict about a node
    that is not lost yet may be repeated: the scheduler forgets it when it hears the node.
    """
    node = cluster.nodes.get(fact.node_id)
    word = (fact.incarnation, fact.lost)
    if (
        node is None
        or word < node.word
        or (word == node.word and not node.usable)
        or not 0 <= fact.lost <= node.lost
        or not fact.lost <= fact.incarnation <= node.incarnation
    ):
        return IGNORED
    node.word = word
    return Change((), (fact.node_id,))


def returned(cluster: Cluster, fact: f.NodeReturned, stamp: Stamp) -> Change:
    node = cluster.nodes.get(fact.node_id)
    if node is None or not max(node.lost, node.returned) < fact.incarnation <= node.incarnation:
        return IGNORED
    node.returned = fact.incarnation
    node.reason = ""
    if not node.replaced:  # one that was replaced meanwhile stays unreachable
        follow_devices(cluster, node, "node.returned")
    return Change(tuple(node.members), (fact.node_id,))


def held_back(cluster: Cluster, fact: f.NodeHeldBack, stamp: Stamp) -> Change:
    node = cluster.nodes.get(fact.node_id)
    if node is None:
        return IGNORED
    node.held_until_ns, node.held_for_ns = fact.until_ns, fact.lost_ns
    node.hold_reason = fact.reason
    return Change((), (fact.node_id,))


def hold_over(cluster: Cluster, fact: f.NodeHoldEnded | f.NodeHoldCleared, stamp: Stamp) -> Change:
    node = cluster.nodes.get(fact.node_id)
    if node is None or fact.until_ns <= node.hold_over_ns:
        return IGNORED
    node.hold_over_ns = fact.until_ns
    return Change((), (fact.node_id,))


def _elsewhere(node: Node, fact: f.NodeRegistered) -> bool:
    """Return whether the agent has another state directory than the one before.

    It then does not know the attempts that the previous agent started.
    """
    return bool(fact.directory) and node.directory not in ("", fact.directory)


def _account(cluster: Cluster, node: Node) -> None:
    for job_id, attempt in node.members.items():
        if attempt_key(job_id, attempt) in node.accounted:
            cluster.jobs[job_id].members[node.node_id].accounted = node.incarnation


def _lose_members(
    cluster: Cluster,
    node: Node,
    nodes: tuple[NodeId, ...],
    seen_over: Collection[JobId] | None = None,
) -> Change:
    """Mark members on this node lost. Return a change with their jobs, and all affected nodes."""
    over = frozenset(seen_over) if seen_over is not None else None
    jobs = [
        job_id
        for job_id in list(node.members)
        if member_fold.lose_if_gone(cluster, cluster.jobs[job_id], node.node_id, over)
    ]
    members = [cluster.jobs[job_id].members[node.node_id] for job_id in jobs]
    return Change(tuple(jobs), tuple(dict.fromkeys((*nodes, *member_fold.homes(cluster, members)))))
