"""The rule by which agents extend their own leases while the control plane is down.

Pure; times are nanoseconds of the boot clock. A node is *renewed* while the heartbeat of its last
scheduler's lease was sent at most RENEWED_PART of a lease ago; an extension by peers does not
count. The scheduler declares a node lost only if at least half of every roster with the node was
renewed at every instant of the lease and margin before. So if a strict majority of one roster was
not renewed at one instant T, no node of it is declared lost before T plus a lease and a margin, and
its lease may last until T plus a lease. T is when the questions were sent. A peer that says that it
was not renewed for the whole window was not renewed at T, because its answer came within the
window.

The rule needs rosters of one life of the cluster. A restore may have taken away nodes that joined
after the backup: a majority with them is none that the scheduler counts. So a roster of another
life extends no lease once the scheduler has named its life, and is replaced by any roster of that
life. Until then this node cannot know of the restore; docs/howto/back-up.md names what follows.
Tests: tests/unit/test_gossip.py; tests/sim breaks everything around it.
"""

import hashlib
from typing import Final

import msgspec

from libs.common.messages import Roster
from libs.common.model import NodeId

MS: Final = 1_000_000
# The scheduler counts by the same part (`services/scheduler/leases/leases.py`).
RENEWED_PART: Final = 2
# A round of questions lasts this part of a lease: 812 ms of 13 s. Answers later than HEARD_PART of
# it do not count, because clocks differ.
WINDOW_PART: Final = 16
HEARD_PART: Final = 0.9
# A node without peers cannot tell whether it or the scheduler is cut off.
ROSTER_MIN: Final = 2
RENEWED: Final = -1
COOKIE_BYTES: Final = 16


class Gossip(msgspec.Struct):
    """The state of one node.

    `granted_ns`: when the heartbeat of the last scheduler's lease was sent, or the latest possible
    time. `asked_ns`, `nonce` and `unrenewed` belong to the present round; an empty nonce means no
    round. `life` is the life of the cluster that the scheduler named last; None: none yet.
    """

    node_id: NodeId
    granted_ns: int
    roster: Roster = Roster()
    asked_ns: int = 0
    nonce: bytes = b""
    unrenewed: dict[NodeId, None] = {}
    life: str | None = None


def begin(node_id: NodeId, roster: Roster, deadline_ns: int, now_ns: int) -> Gossip:
    """Return the state of a new process.

    The process before it may have had a lease until just now, but none beyond the deadline.
    """
    granted_ns = (
        min(now_ns, deadline_ns - roster.lease_ms * MS)
        if deadline_ns and roster.lease_ms
        else now_ns
    )
    return Gossip(node_id, granted_ns, roster)


def window_ns(gossip: Gossip) -> int:
    return gossip.roster.lease_ms * MS // WINDOW_PART


def granted(gossip: Gossip, sent_ns: int) -> None:
    """Note a scheduler's lease for the heartbeat sent then; it ends the present round."""
    gossip.granted_ns = max(gossip.granted_ns, sent_ns)
    gossip.nonce = b""


def hear_life(gossip: Gossip, life: str) -> None:
    """Note the life of the cluster in which the scheduler answers.

    It ends a round with a roster of another life.
    """
    gossip.life = life
    if life != gossip.roster.life:
        gossip.nonce = b""


def unrenewed_ms(gossip: Gossip, now_ns: int) -> int:
    """Return how long this node has not been renewed; RENEWED while it is."""
    since_ns = now_ns - gossip.granted_ns - gossip.roster.lease_ms * MS // RENEWED_PART
    return since_ns // MS if since_ns >= 0 else RENEWED


def ask_at_ns(gossip: Gossip, deadline_ns: int) -> int | None:
    """Return when to ask the peers next; None if no round can help before the lease ends."""
    known = any(entry.node_id == gossip.node_id for entry in gossip.roster.nodes)
    if not known or _counted(gossip.roster) < ROSTER_MIN:
        return None
    if gossip.life not in (None, gossip.roster.life):
        return None
    own_age_ns = deadline_ns - gossip.roster.lease_ms * MS
    since_ns = max(gossip.granted_ns, own_age_ns) + gossip.roster.lease_ms * MS // RENEWED_PART
    at_ns = max(since_ns, gossip.asked_ns) + window_ns(gossip)
    return at_ns if at_ns < deadline_ns else None


def ask(gossip: Gossip, nonce: bytes, now_ns: int) -> int:
    """Begin a round with this node as the first that is not renewed; return as `answered` does."""
    gossip.asked_ns, gossip.nonce, gossip.unrenewed = now_ns, nonce, {}
    return _count(gossip, gossip.node_id)


def cookie(nonce: bytes, peer: NodeId) -> bytes:
    """Return the cookie for one peer in this round.

    Only that peer can answer with it, so other answers are dropped without a signature check.
    """
    return hashlib.blake2b(peer.encode(), key=nonce, digest_size=COOKIE_BYTES).digest()


def expects(gossip: Gossip, peer: NodeId, found: bytes) -> bool:
    """Return whether `found` is the cookie of this peer in the present round."""
    return bool(gossip.nonce) and found == cookie(gossip.nonce, peer)


def answered(
    gossip: Gossip, peer: NodeId, nonce: bytes, peer_unrenewed_ms: int, now_ns: int
) -> int:
    """Return the deadline to which the lease may be extended now; 0 for none.

    A renewed peer is not counted and forbids nothing. `nonce` is the cookie that this peer got.
    """
    late = now_ns - gossip.asked_ns > window_ns(gossip) * HEARD_PART
    if not expects(gossip, peer, nonce) or late or peer_unrenewed_ms * MS < window_ns(gossip):
        return 0
    return _count(gossip, peer)


def takes(gossip: Gossip, roster: Roster) -> bool:
    """Return whether a roster may replace the kept one.

    It must begin with the same nodes, because a majority of fewer nodes would be another majority.
    A roster without nodes, as a cluster with too many nodes has it, is taken too: with it no lease
    is extended. An agent that kept its own roster would get no leases after a node left.

    A roster of another cluster, or of another life of this one, is taken whatever it says: the
    kept one counts for nothing there.
    """
    if (roster.cluster_id, roster.life) != (gossip.roster.cluster_id, gossip.roster.life):
        return roster.lease_ms > 0
    kept = [entry.node_id for entry in gossip.roster.nodes]
    begins_alike = [entry.node_id for entry in roster.nodes[: len(kept)]] in (kept, [])
    return roster.seq >= gossip.roster.seq and begins_alike and roster.lease_ms > 0


def take(gossip: Gossip, roster: Roster) -> None:
    """Replace the roster; a round with the old one is over."""
    gossip.roster, gossip.nonce = roster, b""


def _counted(roster: Roster) -> int:
    return sum(not entry.removed for entry in roster.nodes)


def _count(gossip: Gossip, node_id: NodeId) -> int:
    gossip.unrenewed[node_id] = None
    enough = 2 * len(gossip.unrenewed) > _counted(gossip.roster)
    return gossip.asked_ns + gossip.roster.lease_ms * MS if enough else 0
