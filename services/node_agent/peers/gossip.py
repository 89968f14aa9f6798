"""When an agent may extend its node's lease itself: the rule by which agents go on while the
control plane is down.

Pure; times are nanoseconds of the boot clock. A node is *renewed* while the heartbeat of its last
lease from a scheduler was sent at most RENEWED_PART of a lease ago; what a node gave itself never
counts. The scheduler declares no node lost unless at least half of every roster that holds the node
was renewed at every instant of a lease and a margin before. So: when a strict majority of one
roster was not renewed at one instant T, no node of it is declared lost before T plus a lease and a
margin, and its lease may last until T plus a lease. T is when the asks were sent. A peer that says
that it has not been renewed for the whole window was not renewed at T, for its answer came within
the window. Tests: tests/unit/test_gossip.py; tests/sim breaks everything around it.
"""

import hashlib
from typing import Final

import msgspec

from libs.common.messages import Roster
from libs.common.model import NodeId

MS: Final = 1_000_000
# The scheduler counts by the same part (`services/scheduler/leases/leases.py`).
RENEWED_PART: Final = 2
# A round of asks lasts this part of a lease: 812 ms of 13 s. Answers later than HEARD_PART of it do
# not count, for no two clocks run alike.
WINDOW_PART: Final = 16
HEARD_PART: Final = 0.9
# A node that knows of no other cannot tell its own loss from the scheduler's.
ROSTER_MIN: Final = 2
RENEWED: Final = -1
COOKIE_BYTES: Final = 16


class Gossip(msgspec.Struct):
    """`granted_ns`: when the heartbeat of the last lease from a scheduler was sent, or the latest
    that it can have been.

    `asked_ns`, `nonce` and `unrenewed` are of the present round; an empty nonce is no round.
    """

    node_id: NodeId
    granted_ns: int
    roster: Roster = Roster()
    asked_ns: int = 0
    nonce: bytes = b""
    unrenewed: dict[NodeId, None] = {}


def begin(node_id: NodeId, roster: Roster, deadline_ns: int, now_ns: int) -> Gossip:
    """A process begins: the one before it may have been granted a lease until just now, but none
    that reaches beyond the deadline.
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
    """A scheduler answered the heartbeat that was sent then: the present round is over."""
    gossip.granted_ns = max(gossip.granted_ns, sent_ns)
    gossip.nonce = b""


def unrenewed_ms(gossip: Gossip, now_ns: int) -> int:
    """For how long this node has not been renewed; RENEWED while it is."""
    since_ns = now_ns - gossip.granted_ns - gossip.roster.lease_ms * MS // RENEWED_PART
    return since_ns // MS if since_ns >= 0 else RENEWED


def ask_at_ns(gossip: Gossip, deadline_ns: int) -> int | None:
    """When the peers are to be asked next; None when nothing can come of it before the lease is
    over.
    """
    known = any(entry.node_id == gossip.node_id for entry in gossip.roster.nodes)
    if not known or _counted(gossip.roster) < ROSTER_MIN:
        return None
    own_age_ns = deadline_ns - gossip.roster.lease_ms * MS
    since_ns = max(gossip.granted_ns, own_age_ns) + gossip.roster.lease_ms * MS // RENEWED_PART
    at_ns = max(since_ns, gossip.asked_ns) + window_ns(gossip)
    return at_ns if at_ns < deadline_ns else None


def ask(gossip: Gossip, nonce: bytes, now_ns: int) -> int:
    """Begin a round, in which this node itself is the first that is not renewed.

    Returns what `answered` does.
    """
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
    """The deadline to which the lease may be extended now, 0 for none.

    A peer that is renewed is not counted and forbids nothing. `nonce` is the cookie that this peer
    was given.
    """
    late = now_ns - gossip.asked_ns > window_ns(gossip) * HEARD_PART
    if not expects(gossip, peer, nonce) or late or peer_unrenewed_ms * MS < window_ns(gossip):
        return 0
    return _count(gossip, peer)


def takes(gossip: Gossip, roster: Roster) -> bool:
    """Whether a roster may replace the one that is kept: it must begin with the same nodes, for
    fewer would be another majority.
    """
    if roster.cluster_id != gossip.roster.cluster_id:
        return roster.lease_ms > 0
    kept = [entry.node_id for entry in gossip.roster.nodes]
    begins_alike = [entry.node_id for entry in roster.nodes[: len(kept)]] == kept
    return roster.seq >= gossip.roster.seq and begins_alike and roster.lease_ms > 0


def take(gossip: Gossip, roster: Roster) -> None:
    """A round that began with another roster is over."""
    gossip.roster, gossip.nonce = roster, b""


def _counted(roster: Roster) -> int:
    return sum(not entry.removed for entry in roster.nodes)


def _count(gossip: Gossip, node_id: NodeId) -> int:
    gossip.unrenewed[node_id] = None
    enough = 2 * len(gossip.unrenewed) > _counted(gossip.roster)
    return gossip.asked_ns + gossip.roster.lease_ms * MS if enough else 0
