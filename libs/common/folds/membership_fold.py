"""Apply facts about the membership of machines: one function per kind.

Pure and total, called by `fold.apply` only. The gateways' facts about a node are stored separately
from the node's own, so NodeRegistered commutes with them. A removal is final, whatever the order of
it and a registration.
"""

from libs.common import facts as f
from libs.common.change import IGNORED, Change, Stamp
from libs.common.folds import claim_fold
from libs.common.life import node_life
from libs.common.model import NodeId
from libs.common.state.cluster import Cluster, membership_of


def invited(cluster: Cluster, fact: f.NodeInvited, stamp: Stamp) -> Change:
    member = membership_of(cluster, fact.node_id)
    if member.public_key or member.leaving:
        return IGNORED
    member.secret_hash, member.expires_ns = fact.secret_hash, fact.expires_ns
    return Change()


def joined(cluster: Cluster, fact: f.NodeJoined, stamp: Stamp) -> Change:
    """Store the node's key. The gateway has checked by its clock that the invitation was valid."""
    member = cluster.memberships.get(fact.node_id)
    if (
        member is None
        or member.public_key
        or member.leaving
        or member.secret_hash != fact.secret_hash
    ):
        return IGNORED
    member.public_key = fact.public_key
    return Change()


def removal_requested(cluster: Cluster, fact: f.NodeRemovalRequested, stamp: Stamp) -> Change:
    """Mark the node as leaving. A second request without `wait` stops its jobs at once."""
    member = membership_of(cluster, fact.node_id)
    cluster.leaving_seq = max(cluster.leaving_seq, stamp.seq)
    member.wait = fact.wait and not member.removed and (member.wait or not member.leaving)
    member.leaving = True
    node = cluster.nodes.get(fact.node_id)
    return Change(tuple(node.members), (fact.node_id,)) if node is not None else Change()


def revoked(cluster: Cluster, fact: f.NodeRevoked, stamp: Stamp) -> Change:
    """Revoke the node's key. The first reason counts.

    Its jobs end with their leases, because the node cannot renew them any more.
    """
    member = membership_of(cluster, fact.node_id)
    if member.revoked:
        return IGNORED
    member.revoked = fact.reason or "no reason given"
    node = cluster.nodes.get(fact.node_id)
    if node is None:
        return Change()
    node.revoked = member.revoked
    return Change((), (fact.node_id,))


def revocation(cluster: Cluster, node_id: NodeId) -> str:
    """Return why the servers refuse the node's key; empty for a valid key."""
    found = cluster.memberships.get(node_id)
    return found.revoked if found is not None else ""


def removed(cluster: Cluster, fact: f.NodeRemoved, stamp: Stamp) -> Change:
    member = membership_of(cluster, fact.node_id)
    if member.removed:
        return IGNORED
    member.leaving, member.wait, member.removed = True, False, True
    node = cluster.nodes.get(fact.node_id)
    if node is None:
        return Change()
    node.state = node_life.NODE_LIFE.get((node.state, "node.removed"), node.state)
    return Change((), tuple(dict.fromkeys((fact.node_id, *claim_fold.settle(cluster, node)))))
