"""Facts about the machines of the cluster: invited, joined, lost, removed.

Pure; part of the union in `facts/__init__.py`. No fact holds a secret: the log knows an invitation
by the SHA-256 of its secret, and a node by its public key. A name is used once. A removed node
never returns under its name, because peer extension (`services/node_agent/peers/gossip.py`) counts
names.
"""

from libs.common.facts.fact import Fact
from libs.common.model import JobId, NodeId


class NodeLost(Fact, frozen=True, tag="node.lost"):
    """The scheduler declared an incarnation of a node lost.

    `reason` is silent, declared_dead, replaced or unguarded. After declared_dead, the verdict of an
    operator, jobs that ignore the lease are lost too. After unguarded, the silence of a node whose
    lease watchdog was missing, no job is lost: nothing proves that it has ended. The same holds
    after replaced, if the replaced agent had lost its watchdog. `lost_ns` is the scheduler's wall
    clock at the decision, for losses by silence. `over` are the jobs whose part on
    the node had released its devices, or had refused to start, as far as the scheduler knew. The
    loss does not concern them. Facts of earlier versions name none.
    """

    node_id: NodeId
    incarnation: int
    reason: str = "silent"
    lost_ns: int = 0
    over: tuple[JobId, ...] = ()


class NodeHeldBack(Fact, frozen=True, tag="node.held_back"):
    """The scheduler gives a node no new jobs for a time, because it was lost again and again.

    `until_ns` is when that ends, by the scheduler's wall clock. `lost_ns` is the stamp of the last
    loss that the decision counted.
    """

    node_id: NodeId
    until_ns: int
    lost_ns: int
    reason: str


class NodeHoldEnded(Fact, frozen=True, tag="node.hold_ended"):
    """The time is over for which a node was held back until `until_ns`."""

    node_id: NodeId
    until_ns: int


class NodeHoldCleared(Fact, frozen=True, tag="node.hold_cleared"):
    """An operator ended the hold of a node until `until_ns`."""

    node_id: NodeId
    until_ns: int
    user: str = ""


class NodeReturned(Fact, frozen=True, tag="node.returned"):
    """A lost node came back and takes work again: agent and scheduler agree on what runs there."""

    node_id: NodeId
    incarnation: int


class NodeInvited(Fact, frozen=True, tag="node.invited"):
    """An operator invited a machine to join as this node.

    The machine that presents the secret may join once, until `expires_ns` (the gateway's wall
    clock). A second invitation of the node replaces the first.
    """

    node_id: NodeId
    secret_hash: str
    expires_ns: int
    user: str = ""


class NodeJoined(Fact, frozen=True, tag="node.joined"):
    """A machine used an invitation: `public_key` is the node's public nkey.

    The first such fact counts.
    """

    node_id: NodeId
    secret_hash: str
    public_key: str
    address: str = ""


class NodeRemovalRequested(Fact, frozen=True, tag="node.removal_requested"):
    """An operator asked to remove a node: it takes no more work.

    `wait`: running jobs may end by themselves, and replicas move when another node has room and
    their tenant's GPU limit and budget allow one more. Otherwise they are stopped, and queued again
    or replaced.
    """

    node_id: NodeId
    wait: bool = False
    user: str = ""


class NodeRevoked(Fact, frozen=True, tag="node.revoked"):
    """A gateway revoked a node's key, because the node wrote more to the log than its jobs need.

    The servers refuse the key for ever. The node stays a member, and counts as silent, until an
    operator removes it.
    """

    node_id: NodeId
    reason: str


class NodeRemoved(Fact, frozen=True, tag="node.removed"):
    """A node was removed: no job is on it and its key is void.

    No living agent asks it for a lease or counts its answers any more.
    """

    node_id: NodeId


MembershipWish = NodeInvited | NodeJoined | NodeRemovalRequested | NodeRevoked
