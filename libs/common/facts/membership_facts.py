"""Facts about which machines belong to the cluster, and which are there.

Pure; part of the union in `facts.py`.

No fact holds a secret: an invitation is known by the SHA-256 of its secret, a node by its public
key. A name is used once: what was removed stays removed, because the count by which nodes outlive a
control plane that is down (`services/node_agent/peers/gossip.py`) is over names.
"""

from libs.common.facts.fact import Fact
from libs.common.model import NodeId


class NodeLost(Fact, frozen=True, tag="node.lost"):
    """`reason` is silent, or declared_dead: then an operator has said so, and jobs that may go on
    without a lease are lost too.
    """

    node_id: NodeId
    incarnation: int
    reason: str = "silent"


class NodeReturned(Fact, frozen=True, tag="node.returned"):
    node_id: NodeId
    incarnation: int


class NodeInvited(Fact, frozen=True, tag="node.invited"):
    """Whoever shows the secret may join as this node, once, until `expires_ns` (the gateway's wall
    clock).

    Again: another secret counts.
    """

    node_id: NodeId
    secret_hash: str
    expires_ns: int
    user: str = ""


class NodeJoined(Fact, frozen=True, tag="node.joined"):
    """The invitation was used: this public nkey is the node's. The first counts."""

    node_id: NodeId
    secret_hash: str
    public_key: str
    address: str = ""


class NodeRemovalRequested(Fact, frozen=True, tag="node.removal_requested"):
    """Nothing more is placed there.

    `wait`: what runs may end by itself, else it is stopped and queued again.
    """

    node_id: NodeId
    wait: bool = False
    user: str = ""


class NodeRevoked(Fact, frozen=True, tag="node.revoked"):
    """The node wrote more to the log than its jobs need. The servers refuse its key for ever.

    The node stays a member, and counts as a silent one, until an operator removes it.
    """

    node_id: NodeId
    reason: str


class NodeRemoved(Fact, frozen=True, tag="node.removed"):
    """Nothing of any job is on the node, and no living agent asks or believes it: it counts no
    more, and its key is void.
    """

    node_id: NodeId
