"""The list of all nodes that each agent keeps, so that agents can ask each other when no scheduler
answers.

Pure, and made from acknowledged state. Nodes are in order of first registration, so a later roster
begins with an earlier one. The agents' rule (`services/node_agent/peers/gossip.py`) and the rule of
loss (`renewals.py`) rely on that. A removed node keeps its position. It is left out of the count in
two steps, so that no two agents can count against each other (docs/decisions).

A restore ends this order: a roster of an earlier life may hold nodes that the present life does not
know, or has at other positions. So it counts for nothing, and its agent gets no lease.
"""

import hashlib
from collections.abc import Iterable
from typing import Final

import msgspec

from libs.common.facts import (
    AnyFact,
    ClusterConfigured,
    LeaseProfileSet,
    NodeRegistered,
    NodeRemovalRequested,
    NodeRemoved,
    Unknown,
)
from libs.common.messages import Heartbeat, Roster, RosterEntry
from libs.common.state.cluster import Cluster, Node, is_leaving, is_removed, present_life

# Longest address and key. An entry stays below ENTRY_BYTES, one of a node that leaves or was
# removed below LEFT_BYTES, and a roster below 1 MiB: it is one message.
WORD_MAX: Final = 64
ENTRY_BYTES: Final = 210
LEFT_BYTES: Final = 100
# A node that leaves or was removed counts half. With more nodes than this the roster is empty, and
# agents extend no lease.
NODES_MAX: Final = 4_096

CHANGES_ROSTER: Final = (
    NodeRegistered,
    ClusterConfigured,
    LeaseProfileSet,
    NodeRemovalRequested,
    NodeRemoved,
)

_encode = msgspec.msgpack.Encoder().encode


class PresentRoster:
    """The roster of the acknowledged state, made when it is first needed after a change."""

    def __init__(self) -> None:
        self.roster: Roster | None = None

    def note(self, facts: Iterable[AnyFact | Unknown]) -> None:
        """Drop the roster if one of these facts may change it."""
        if any(isinstance(fact, CHANGES_ROSTER) for fact in facts):
            self.roster = None

    def of(self, cluster: Cluster) -> Roster:
        """Return the roster of this state."""
        if self.roster is None:
            self.roster = roster(cluster)
        return self.roster


def roster_needed(cluster: Cluster) -> int:
    """Return the sequence below which a roster gets no lease.

    While former timings count too, an agent that goes by one may have a lease.
    """
    return cluster.leaving_seq if cluster.former else max(cluster.leaving_seq, cluster.timing_seq)


def may_hold_lease(cluster: Cluster, node: Node, beat: Heartbeat) -> bool:
    """Return whether the roster on the agent's disk allows a lease.

    An agent with an older roster counts a leaving node, or goes by a former timing. One with a
    roster of another life counts nodes that this life does not know. An agent of an earlier release
    may have no roster of this life before the log has passed the one that it keeps, so its lease
    cannot wait for that.
    """
    if not node.peer_address:
        return True
    of_this_life = beat.roster_life in (None, present_life(cluster))
    return of_this_life and beat.roster_seq >= roster_needed(cluster)


def is_of_this_life(cluster: Cluster, beat: Heartbeat) -> bool:
    """Return whether the roster that the heartbeat describes is of the cluster's present life.

    An agent of an earlier release does not say. Its roster is of an earlier life if its commit is
    not one of the present life.
    """
    if beat.roster_life is None:
        return not cluster.life or cluster.restored_seq < beat.roster_seq <= cluster.seq
    return beat.roster_life == present_life(cluster)


def roster(cluster: Cluster) -> Roster:
    """Return the roster of this state, without nodes if there are too many."""
    nodes = (
        tuple(_entry(cluster, node) for node in cluster.nodes.values()) if _fits(cluster) else ()
    )
    known = [(node.node_id, node.address, node.key, node.removed) for node in nodes]
    # A profile that is chosen again needs a roster of its own, although it says the same.
    changed = max(cluster.leaving_seq, cluster.timing_seq)
    life = present_life(cluster)
    said = (cluster.cluster_id, cluster.timing.lease_ms, changed, known, *((life,) if life else ()))
    digest = hashlib.blake2b(_encode(said), digest_size=8).hexdigest()
    return Roster(
        cluster_id=cluster.cluster_id,
        seq=cluster.seq,
        digest=digest,
        lease_ms=cluster.timing.lease_ms,
        nodes=nodes,
        life=life,
    )


def _fits(cluster: Cluster) -> bool:
    leaving = sum(is_leaving(cluster, node_id) for node_id in cluster.nodes)
    size = (len(cluster.nodes) - leaving) * ENTRY_BYTES + leaving * LEFT_BYTES
    return size <= NODES_MAX * ENTRY_BYTES


def _entry(cluster: Cluster, node: Node) -> RosterEntry:
    if is_leaving(cluster, node.node_id):
        return RosterEntry(
            node_id=node.node_id,
            address="",
            key="",
            incarnation=0,
            removed=is_removed(cluster, node.node_id),
        )
    fits = len(node.peer_address) <= WORD_MAX and len(node.peer_key) <= WORD_MAX
    return RosterEntry(
        node.node_id,
        node.peer_address if fits else "",
        node.peer_key if fits else "",
        node.incarnation,
    )
